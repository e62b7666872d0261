-- Completes the WAL file in use, so that the archiver can take it, and returns the name of the newest completed file; an empty
-- name if nothing is archived. archive_mode alone says little: CloudNativePG always sets it. Without a command or library the
-- archiver leaves the files alone, and a shutdown does not wait for them.
-- pg_switch_wal() returns the end of the last record within the file that it completed or, if nothing was written since the last
-- switch, the start of the file in use. The position before either is in the newest completed file, and on no file's boundary,
-- where pg_walfile_name() answers differently before PostgreSQL 17.
-- archive_library exists since PostgreSQL 15.
SELECT CASE
	WHEN current_setting('archive_mode') = 'off' THEN ''
	WHEN current_setting('archive_command') = '' AND coalesce(current_setting('archive_library', true), '') = '' THEN ''
	ELSE pg_catalog.pg_walfile_name(pg_catalog.pg_switch_wal() - 1::numeric)
END
