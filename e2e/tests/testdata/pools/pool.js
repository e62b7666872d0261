// Serves a pool of node-postgres: a request has each of its connections used, and is answered with their numbers, which PgBouncer
// has given them, and after how many milliseconds each had its answer.
const { Pool } = require('pg');

const size = 3, errors = [];
const pool = new Pool({
  host: process.argv[2], user: 'web', database: 'app', password: process.env.PGPASSWORD, max: size, idleTimeoutMillis: 0,
});
pool.on('error', (error) => errors.push(error));
pool.on('connect', (client) => client.on('error', (error) => errors.push(error)));

require('http').createServer(async (_, response) => {
  const began = Date.now(), lines = [];
  try {
    const clients = await Promise.all(Array.from({ length: size }, () => pool.connect()));
    await Promise.all(clients.map(async (client) => {
      await client.query('select $1::int', [1]);
      lines.push(`${client.processID} ${Date.now() - began}`);
    }));
    clients.forEach((client) => client.release());
  } catch (error) {
    errors.push(error);
  }
  response.end(lines.concat(errors.map((error) => `error: ${error}`)).join('\n'));
}).listen(8081);
