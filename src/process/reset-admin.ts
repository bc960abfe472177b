import { newAdministrator } from '../access/users-file.ts';
import type { Config } from '../config/options.ts';
import { ConfigError } from '../config/problem.ts';
import { hasConfiguredUsers, usersFileOf } from '../server/users.ts';

/**
 * `reset-admin`: makes the administrator anew, answers the text to show.
 * @throws ConfigError where the configuration names the users itself
 */
export async function resetAdministrator(config: Config): Promise<string> {
  if (hasConfiguredUsers(config)) {
    const problem = 'names the users, so there is no administrator to reset';
    const remedy = 'Change the password there; `npm start -- hash-password` makes its hash';
    throw new ConfigError([{ source: null, path: 'http.users', problem, remedy }]);
  }
  const file = usersFileOf(config);
  const { definition, password } = await newAdministrator();
  await file.write([definition]);
  return `  user      ${definition.name}
  password  ${password}

Its hash is in ${file.path}. A server that runs takes it on SIGHUP, or when it is started again.
`;
}
