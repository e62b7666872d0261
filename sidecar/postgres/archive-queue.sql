-- Returns how many files the archiver has not archived yet, of those that it takes no later than the WAL file $1, and how many of
-- these it takes before that file. It takes them in the order of their names, timeline histories first.
-- The directory is exact. pg_stat_archiver is not: it names only the newest file, which may be a history or a backup's label, and
-- may be on an earlier timeline.
SELECT count(*), count(*) FILTER (WHERE name COLLATE "C" < $1::text || '.ready')
FROM pg_catalog.pg_ls_archive_statusdir()
WHERE name LIKE '%.ready' AND name COLLATE "C" <= $1::text || '.ready'
