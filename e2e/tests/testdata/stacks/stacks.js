// Does as stacks.py does, with node-postgres, Postgres.js and Prisma: pools of node-postgres and Prisma with their own time for idle
// connections, and others that keep them.
const { Pool } = require('pg');
const postgres = require('postgres');
const { PrismaClient } = require('/opt/node/prisma');
const { PrismaPg } = require('@prisma/adapter-pg');

const settings = { host: process.argv[2], user: 'app', database: 'app', password: process.env.PGPASSWORD };
const tries = Number(process.env.TRIES);
const kept = new Pool({ ...settings, idleTimeoutMillis: 0 });
kept.on('error', () => {}); // without it Node.js exits
const prisma = (more) => new PrismaClient({ adapter: new PrismaPg({ ...settings, ...more }) });
const sql = postgres({ ...settings, connect_timeout: Number(process.env.TIMEOUT) });
const [pool, client, keeping, transacting] = [new Pool(settings), prisma({}), prisma({ idleTimeoutMillis: 0 }), prisma({})];
const stacks = {
  'node-postgres': () => pool.query('select 1'),
  'node-postgres that keeps connections': () => kept.query('select 1'),
  'Postgres.js': () => sql`select 1`,
  'Prisma': () => client.$queryRaw`select 1`,
  'Prisma that keeps connections': () => keeping.$queryRaw`select 1`,
  'Prisma with maxWait': () => transacting.$transaction((transaction) => transaction.$queryRaw`select 1`, { maxWait: 60_000 }),
};

async function use(ask) {
  const errors = [];
  while (errors.length < tries) {
    try {
      await ask();
      break;
    } catch (error) {
      errors.push(String(error).replace(/\s+/g, ' '));
    }
  }
  return `${errors.length}\t${errors[0] ?? ''}`;
}

require('readline').createInterface({ input: process.stdin }).on('line', async (line) => {
  const answers = await Promise.all(Object.entries(stacks).map(async ([name, ask]) => `${line}\t${name}\t${await use(ask)}`));
  console.log([...answers, `${line}\tend`].join('\n'));
});
