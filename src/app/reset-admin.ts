import { newAdministrator } from '../access/users-file.ts';
import type { LoadedConfig } from '../config/load.ts';
import { ConfigError } from '../config/problem.ts';
import { hasConfiguredUsers, saveUsers, usersFileOf } from './users.ts';

/**
 * `reset-admin`: creates the administrator again and returns the text to show.
 * @throws ConfigError where the configuration names the users itself, or `dataDir` takes no file
 */
export async function resetAdministrator({ config, sourceOf }: LoadedConfig): Promise<string> {
  if (hasConfiguredUsers(config)) {
    const problem = 'names the users, so there is no administrator to reset';
    const remedy = 'Change the password there; `npm start -- hash-password` makes its hash';
    throw new ConfigError([{ source: null, path: 'http.users', problem, remedy }]);
  }
  const { definition, password } = await newAdministrator();
  await saveUsers(config, [definition], sourceOf);
  return `  user      ${definition.name}
  password  ${password}

Its hash is in ${usersFileOf(config).path}. A server that runs takes it on SIGHUP, or when it is started again.
`;
}
