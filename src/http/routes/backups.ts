import Type from 'typebox';
import type { Parameter } from '../parameters.ts';
import { type Route, route } from '../route.ts';
import { Backup } from '../schemas.ts';

const name: Parameter<string | null> = {
  description: 'Of the backup, and so of its folder; the time if it is not given.',
  schema: Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$' }),
  fallback: null,
  // Checked by those who make a path of it.
  read: (_name, value) => value,
};

export const backupRoutes: readonly Route[] = [
  route({
    id: 'backUp',
    methods: ['POST'],
    path: '/backup',
    summary: 'Copy every SQLite file, while it is used, into a new folder of the folder of backups',
    access: 'administrator',
    isAudited: true,
    query: { name },
    answers: [
      {
        status: 201,
        description: 'It is complete and on disk.',
        contentType: 'application/json',
        schema: Backup,
      },
    ],
    problems: ['backup-conflict', 'storage-full', 'storage-unavailable', 'shutting-down'],
    async handle(call, query) {
      call.json(201, JSON.stringify(await call.front.parts.backUp(query.name)));
    },
  }),
];
