import { after, afterEach, before, describe } from 'node:test';
import { connection } from './connection.ts';
import { contents } from './contents.ts';
import { OpenedConsole } from './opened.ts';
import { refreshing } from './refreshing.ts';

/** Tests that need only elements of their own, in a process of their own: together with the others they took longest. */
describe('The console in a browser, when its connection fails, when it refreshes, and on any content', () => {
  let opened: OpenedConsole;

  before(async () => {
    opened = await OpenedConsole.open();
  });

  afterEach((context) => opened.check(context));

  after(() => opened?.close());

  connection(() => opened);
  contents(() => opened);
  refreshing(() => opened);
});
