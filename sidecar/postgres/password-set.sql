-- Whether the password of role $1 has been set since the server started: setting it writes the role's row anew, with a
-- transaction ID that the checkpoint of the shutdown did not know yet. A role that does not exist has none to set.
SELECT coalesce((
    SELECT pg_catalog.age(r.xmin) <= pg_catalog.age(split_part(c.next_xid, ':', 2)::xid)
    FROM pg_catalog.pg_authid AS r, pg_catalog.pg_control_checkpoint() AS c WHERE r.rolname = $1
), true)
