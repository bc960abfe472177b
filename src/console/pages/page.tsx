import { address, href, place } from '../route.ts';
import { Empty } from '../ui/states.tsx';
import { Overview } from './overview.tsx';
import { Queues } from './queues.tsx';

/** The page of the address. Another address makes another page; another query does not. */
export function PageOf() {
  const [first = '', ...rest] = address.value.parts;
  return <Chosen key={place.value} name={first} rest={rest} />;
}

function Chosen({ name, rest }: { readonly name: string; readonly rest: readonly string[] }) {
  if (name === '') return <Overview />;
  if (name === 'queues') return <Queues />;
  return (
    <Empty title="There is no such page" icon="search">
      The address names {[name, ...rest].join(' / ')}. <a href={href([])}>Go to the overview.</a>
    </Empty>
  );
}
