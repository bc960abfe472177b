import { call, get, path } from '../api.ts';

/** The declaration of an exchange. */
export interface ExchangeDeclared {
  readonly src: { readonly ns: string; readonly queue: string };
  readonly dst: readonly { readonly ns: string; readonly queue: string; readonly selector?: string }[];
  readonly consumer: { readonly parallel?: number; readonly wsize?: number; readonly reserve?: boolean };
}

export interface ExchangeDetails {
  readonly src: { readonly q: string; readonly ns: string };
  readonly dst: readonly {
    readonly q: string;
    readonly ns: string;
    readonly selector?: string;
    readonly hidden?: true;
  }[];
  readonly opts: ExchangeDeclared['consumer'];
  readonly wsize: number;
  /** Elements in progress on the answering node, by id. */
  readonly pending_acks: Readonly<Record<string, unknown>>;
  readonly stopped: boolean | null;
  readonly version?: string;
  readonly stats: {
    readonly no_route: number;
    readonly too_many_hops: number;
    readonly put_back: number;
    readonly selector_ms: number;
    readonly dst: readonly { readonly matched: number; readonly skipped: number; readonly failed: number }[];
  };
  readonly errors: readonly {
    readonly destination: number;
    readonly message: string;
    readonly line: number | null;
    readonly column: number | null;
    readonly at: string;
    readonly count: number;
  }[];
  readonly lastError: string | null;
  readonly loops: readonly (readonly string[])[];
}

export function exchangeDetails(id: string, signal: AbortSignal): Promise<ExchangeDetails> {
  return get<ExchangeDetails>(path('x', id), { signal });
}

export async function saveExchange(
  id: string,
  declared: ExchangeDeclared,
  version: string | null,
): Promise<void> {
  const headers = version === null ? {} : { 'if-match': `"${version}"` };
  await call(path('x', id), { method: 'PUT', json: declared, headers });
}

export async function changeExchange(id: string, verb: 'start' | 'stop' | 'delete'): Promise<void> {
  if (verb === 'delete') await call(path('x', id), { method: 'DELETE' });
  else await call(path('x', id, verb), { method: 'POST' });
}
