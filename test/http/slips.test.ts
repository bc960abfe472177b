import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { HTTP_DEFAULTS } from '../../src/http/options.ts';
import type { Route } from '../../src/http/route.ts';
import { parametersOf, routeTable } from '../../src/http/routes/table.ts';
import { sharedHarness } from './harness.ts';
import { closingRequest, exchange } from './raw.ts';

const ROUTES = routeTable({ options: HTTP_DEFAULTS, version: '0' });

/** A request of a route, with names in place of the path parameters. */
function requestOf({ methods: [method = 'GET'], path, body }: Route, search: string): Buffer {
  const target = path.replace(':namespace', 'N').replace(/:\w+/g, 'bad');
  return closingRequest(method, `${target}?${search}`, [], body === 'json' ? '{}' : '');
}

/** Typos of a name: in another case and, for names of at least 4 letters, with one edit. */
function slipsOf(name: string): string[] {
  const slips = [name.toUpperCase(), `${name.charAt(0).toUpperCase()}${name.slice(1)}`];
  if (name.length < 4) return slips;
  const middle = name.length >> 1;
  const swapped = `${name.slice(0, middle - 1)}${name[middle]}${name[middle - 1]}${name.slice(middle + 1)}`;
  if (swapped !== name) slips.push(swapped);
  slips.push(name.slice(0, -1), name.slice(1), `${name}x`, `x${name}`, `${name.slice(0, -1)}%2D`);
  return slips;
}

describe('A misspelled query parameter', () => {
  const harness = sharedHarness();

  for (const route of ROUTES) {
    const known = parametersOf(route).map(([name]) => name);
    for (const name of known) {
      for (const slip of slipsOf(name).filter((one) => !known.includes(one))) {
        it(`of ${route.id} is rejected: ${slip} for ${name}`, async () => {
          const [answer] = await exchange(harness().port, requestOf(route, `${slip}=1`));
          assert.equal(answer?.status, 400);
          const { code, parameter, detail } = JSON.parse(answer.body);
          assert.equal(code, 'invalid-parameter');
          assert.equal(parameter, decodeURIComponent(slip));
          assert.ok(detail.startsWith(`Unknown parameter "${parameter}". Did you mean "`), detail);
        });
      }
    }
  }
});
