-- Whether the server has begun to stop: it accepts no more sessions, and waits for those that there are. The last line of the
-- postmaster's file says so (src/include/utils/pidfile.h), which only a superuser may read.
SELECT pg_catalog.pg_read_file('postmaster.pid') ~ 'stopping\s*$'
