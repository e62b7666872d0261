-- Removes what functions.sql and login-trigger.sql installed, from PostgreSQL 15 on, whether it is there or not:
--
--   psql -v ON_ERROR_STOP=1 -f uninstall.sql DATABASE
--
-- As the role that installed them; the login trigger needs a superuser. Nothing is removed by CASCADE: if something of yours
-- is in the schema or uses the functions, this fails, says what, and changes nothing.
-- With the login trigger gone, log in to the database on the primary once: until then it keeps the mark of having one, which some
-- minor releases of 17 and 18 do not get along with on standbys (BUG #19488).

BEGIN;

DROP EVENT TRIGGER IF EXISTS scale_to_zero_login;
DROP FUNCTION IF EXISTS scale_to_zero.notify_login();
DROP FUNCTION IF EXISTS scale_to_zero.touch();
DROP FUNCTION IF EXISTS scale_to_zero.keep_awake(interval);
DROP FUNCTION IF EXISTS scale_to_zero.release();
DROP FUNCTION IF EXISTS scale_to_zero.hibernate();
DROP FUNCTION IF EXISTS scale_to_zero.status();
DROP FUNCTION IF EXISTS scale_to_zero.send(text);
DROP SCHEMA IF EXISTS scale_to_zero;

COMMIT;
