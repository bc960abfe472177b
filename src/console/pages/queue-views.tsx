import { savedViews } from '../preferences.ts';
import { address, href } from '../route.ts';
import { Button } from '../ui/button.tsx';
import { onData } from '../ui/form.tsx';
import { Menu } from '../ui/menu.tsx';

/** Saved filters and sort orders of the list of queues. */
export function SavedViews() {
  const save = onData((data, form) => {
    const name = String(data.get('name')).trim();
    if (name === '') return;
    const others = savedViews.value.filter((view) => view.name !== name);
    savedViews.value = [...others, { name, query: address.peek().query.toString() }];
    form.reset();
  });
  return (
    <Menu title="Saved views" icon="bookmark" label="Views">
      {savedViews.value.map(({ name, query }) => (
        <div key={name} class="row saved">
          <a href={`${href(['queues'])}?${query}`}>{name}</a>
          <Button
            icon="close"
            class="square"
            aria-label={`Remove view ${name}`}
            onClick={() => (savedViews.value = savedViews.value.filter((view) => view.name !== name))}
          />
        </div>
      ))}
      <form class="row save" onSubmit={save}>
        <input name="name" placeholder="Name of this view" aria-label="Name of this view" maxLength={60} />
        <button type="submit">Save</button>
      </form>
    </Menu>
  );
}
