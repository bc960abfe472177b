import { address, href } from '../route.ts';

export function NoSuchPage() {
  return (
    <>
      <h1>Page not found</h1>
      <p>
        No page has the address <bdi>{address.value.parts.join(' / ')}</bdi>.{' '}
        <a href={href([])}>Go to the overview.</a>
      </p>
    </>
  );
}
