/**
 * Runs `work`, and resolves to the share of its processor time that the longest turn of the event loop took. Not elapsed
 * time: on a busy machine this thread may wait arbitrarily long.
 */
export async function longestTurn(work: () => Promise<void>): Promise<number> {
  const before = process.threadCpuUsage();
  let turn = before;
  let [longest, isDone] = [0, false];
  const onTurn = (): void => {
    longest = Math.max(longest, sumOf(process.threadCpuUsage(turn)));
    turn = process.threadCpuUsage();
    if (!isDone) setImmediate(onTurn);
  };
  setImmediate(onTurn);
  await work();
  isDone = true;
  return longest / sumOf(process.threadCpuUsage(before));
}

function sumOf({ user, system }: NodeJS.CpuUsage): number {
  return user + system;
}
