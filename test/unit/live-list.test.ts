import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { LiveList } from '../../src/util/live-list.ts';

class Item {
  place = -1;
}

describe('LiveList', () => {
  it('has exactly the items that were added and not removed', () => {
    const list = new LiveList<Item>();
    const items = Array.from({ length: 50 }, () => new Item());
    const expected = new Set<Item>();
    for (let step = 0; step < 1000; step += 1) {
      const item = items[(step * step * 7 + step * 3) % items.length] as Item;
      if (expected.delete(item)) list.remove(item);
      else {
        list.add(item);
        expected.add(item);
      }
      assert.equal(list.items().length, expected.size);
      assert.deepEqual(new Set(list.items()), expected);
    }
  });

  it('allows removing an item twice, and during an iteration', () => {
    const list = new LiveList<Item>();
    const items = [new Item(), new Item(), new Item()];
    for (const item of items) list.add(item);
    for (const item of list.items()) {
      list.remove(item);
      list.remove(item);
    }
    assert.deepEqual(list.items(), []);
  });
});
