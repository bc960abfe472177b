import { QuaysideError } from '../model/errors.ts';
import { quoteBytes } from '../util/quote.ts';
import { malformed } from './codec/malformed.ts';
import { STOMP_LIMITS } from './limits.ts';
import { Transaction } from './transaction.ts';
import { TransactionBudget } from './transaction-budget.ts';
import { unknown } from './values.ts';

/** The open transactions of one session. */
export class Transactions {
  readonly #budget: TransactionBudget;
  readonly #open = new Map<string, Transaction>();

  constructor(bodyLimit: number) {
    this.#budget = new TransactionBudget(bodyLimit);
  }

  /** @throws QuaysideError `malformed-request`, `overloaded` */
  begin(id: string): void {
    if (this.#open.has(id)) {
      throw malformed(
        `Transaction ${quoteBytes(id)} is open already. Choose another id, or end it first.`,
        'transaction',
      );
    }
    if (this.#open.size >= STOMP_LIMITS.transactions) {
      throw new QuaysideError(
        'overloaded',
        `This session has ${STOMP_LIMITS.transactions} open transactions, the most that are allowed.`,
      );
    }
    this.#open.set(id, new Transaction(this.#budget));
  }

  /** @throws QuaysideError `malformed-request` */
  find(id: string): Transaction {
    const transaction = this.#open.get(id);
    if (transaction === undefined) {
      throw malformed(unknown('open transaction', id, this.#open.keys()), 'transaction');
    }
    return transaction;
  }

  /** Takes one out: its id is free again. @throws QuaysideError `malformed-request` */
  end(id: string): Transaction {
    const transaction = this.find(id);
    this.#open.delete(id);
    return transaction;
  }

  /** What they would have done is not done; what they claimed goes back with its subscription. */
  dropAll(): void {
    this.#open.clear();
  }
}
