-- Returns whether WAL has waited for the archiver for more than $1 seconds, so that a shutdown would wait for it too. Without a command
-- or library the archiver leaves the files alone, and a shutdown does not wait for them.
SELECT (current_setting('archive_command') <> '' OR coalesce(current_setting('archive_library', true), '') <> '')
   AND current_setting('archive_mode') <> 'off'
   AND EXISTS (SELECT FROM pg_catalog.pg_ls_archive_statusdir()
               WHERE name LIKE '%.ready' AND modification < clock_timestamp() - make_interval(secs => $1::double precision))
