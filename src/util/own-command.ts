/** A command of this program, as a person types it: in a clone with npm, otherwise by the name of the package. */
export function ownCommand(words: string): string {
  const isClone = import.meta.filename.endsWith('.ts');
  return `\`${isClone ? 'npm start --' : 'quayside'} ${words}\``;
}
