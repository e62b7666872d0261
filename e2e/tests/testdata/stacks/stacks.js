// Does as stacks.py does, with node-postgres: with the pool's own time for idle connections, and with pools that keep them.
const { Pool } = require('pg');

const settings = { host: process.argv[2], user: 'app', database: 'app', password: process.env.PGPASSWORD };
const kept = new Pool({ ...settings, idleTimeoutMillis: 0 });
kept.on('error', () => {}); // without it Node.js exits
const stacks = { 'node-postgres': new Pool(settings), 'node-postgres that keeps connections': kept };

async function use(pool) {
  const errors = [];
  while (errors.length < 10) {
    try {
      await pool.query('select 1');
      break;
    } catch (error) {
      errors.push(String(error));
    }
  }
  return `${errors.length}\t${errors[0] ?? ''}`;
}

require('readline').createInterface({ input: process.stdin }).on('line', async (line) => {
  const answers = await Promise.all(Object.entries(stacks).map(async ([name, pool]) => `${line}\t${name}\t${await use(pool)}`));
  console.log([...answers, `${line}\tend`].join('\n'));
});
