import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type InLine, Line, type Turn } from '../../src/exchange/sandbox/line.ts';

/** `N1a`: of namespace N, program 1, a. */
interface Item extends InLine {
  readonly name: string;
}

function item(name: string): Item {
  return { name, turn: `namespace ${name.slice(0, 1)}`, program: Number(name.slice(1, 2)) };
}

function lineOf(names: string): Line<Item> {
  const line = new Line<Item>();
  for (const name of names.split(' ')) line.push(item(name));
  return line;
}

function taken(line: Line<Item>, mayGo: (turn: Turn) => boolean = () => true): string {
  const names: string[] = [];
  for (let next = line.next(mayGo); next !== null; next = line.next(mayGo)) names.push(next.name);
  return names.join(' ');
}

describe('The line before the selector worker', () => {
  it('moves by namespace, within one by program, and within that in order', () => {
    const line = lineOf('M1a M1b M2a M3a N1a N1b');
    assert.equal(taken(line), 'M1a N1a M2a N1b M3a M1b');
    assert.ok(line.isEmpty);
  });

  it('passes over those who may not go, and they keep their place', () => {
    const line = lineOf('M1a M2a N1a');
    assert.equal(
      taken(line, (turn) => turn === 'namespace N'),
      'N1a',
    );
    line.push(item('N1b'));
    assert.equal(taken(line), 'M1a N1b M2a');
  });

  it('begins with what was put first, ahead of its own program', () => {
    const line = lineOf('M1a N1a N2a N2b');
    line.putFirst(item('N2z'));
    line.putFirst(item('O1z'));
    assert.equal(taken(line), 'O1z N2z M1a N1a N2a N2b');
  });

  it('gives up everything at once', () => {
    const line = lineOf('M1a N1a M2a');
    assert.deepEqual(
      line
        .clear()
        .map(({ name }) => name)
        .sort(),
      ['M1a', 'M2a', 'N1a'],
    );
    assert.ok(line.isEmpty);
  });
});
