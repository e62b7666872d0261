package tests

import "fmt"

// The connection modes of libpq and similar drivers.
const (
	plain     = "sslmode=disable"
	overTLS   = "sslmode=require"
	directTLS = "sslmode=require sslnegotiation=direct"
)

// libpqVisitors use psql.
func libpqVisitors() []visitor {
	const psql = `psql -XAtqc "select 'answered'" "host=$HOST user=app dbname=app ` + fromAfar + ` %s"`
	return []visitor{
		{name: "psql", script: fmt.Sprintf(psql, plain), answered: true, wakes: true},
		{name: "psql over TLS", script: fmt.Sprintf(psql, overTLS), answered: true, wakes: true},
		{name: "psql over direct TLS", script: fmt.Sprintf(psql, directTLS), answered: true, wakes: true},
	}
}

// refusedVisitors get as far as authentication but get no session. Replication clients without TLS wake nothing.
func refusedVisitors() []visitor {
	const wrong = `PGPASSWORD=wrong psql -XAtqc "select 1" "host=$HOST user=app dbname=app connect_timeout=60 %s"`
	const replication = `psql -XAtqc IDENTIFY_SYSTEM "host=$HOST user=streaming_replica dbname=app replication=%s connect_timeout=5 sslmode=disable"`
	return []visitor{
		{name: "pg_isready", script: `pg_isready -t 60 -h "$HOST" -U app -d app`, wakes: true},
		{name: "a wrong password", script: fmt.Sprintf(wrong, plain), status: 2, wakes: true},
		{name: "a wrong password over TLS", script: fmt.Sprintf(wrong, overTLS), status: 2, wakes: true},
		{name: "physical replication without TLS", script: fmt.Sprintf(replication, "true"), status: 2, counts: anyhow},
		{name: "logical replication without TLS", script: fmt.Sprintf(replication, "database"), status: 2, counts: anyhow},
	}
}

// javaVisitors use pgjdbc.
func javaVisitors() []visitor {
	const java = "cat >/tmp/Client.java <<'END_OF_JAVA'\n" + javaClient + "\nEND_OF_JAVA\n" +
		`exec java -cp "/usr/share/java/*" /tmp/Client.java "jdbc:postgresql://$HOST/app?%s"`
	return []visitor{
		{name: "pgjdbc", script: fmt.Sprintf(java, "sslmode=disable"), answered: true, wakes: true},
		{name: "pgjdbc over TLS", script: fmt.Sprintf(java, "sslmode=verify-full&sslrootcert=/tmp/ca.crt"), answered: true, wakes: true},
		{name: "pgjdbc over direct TLS", script: fmt.Sprintf(java, "sslmode=require&sslNegotiation=direct"), answered: true, wakes: true},
	}
}

// pythonVisitors use psycopg.
func pythonVisitors() []visitor {
	const python = `exec python3 -c 'import os, psycopg
print(psycopg.connect("user=app dbname=app ` + fromAfar + ` %s host=" + os.environ["HOST"]).execute("select %%s", ["answered"]).fetchone()[0])'`
	return []visitor{
		{name: "psycopg", script: fmt.Sprintf(python, plain), answered: true, wakes: true},
		{name: "psycopg over TLS", script: fmt.Sprintf(python, overTLS), answered: true, wakes: true},
		{name: "psycopg over direct TLS", script: fmt.Sprintf(python, directTLS), answered: true, wakes: true},
	}
}

// goVisitors use pgx, or send bytes that are not a client's.
func goVisitors() []visitor {
	const pgx = `exec /tmp/connect "host=$HOST user=app dbname=app password=$PGPASSWORD ` + fromAfar + ` %s"`
	const wire = "exec 3<>/dev/tcp/$HOST/5432; "
	const sslRequest, gssRequest = `printf '\x00\x00\x00\x08\x04\xd2\x16\x2f' >&3; `, `printf '\x00\x00\x00\x08\x04\xd2\x16\x30' >&3; `
	const answer = "read -r -N 1 <&3; "
	// PostgreSQL may accept GSSENCRequest with a G, and then answers nothing but tokens of GSSAPI. The gateway never accepts it.
	const unlessAccepted = `[ "$REPLY" = G ] || { `
	return []visitor{
		{name: "pgx", script: fmt.Sprintf(pgx, plain), answered: true, wakes: true},
		{name: "pgx over TLS", script: fmt.Sprintf(pgx, overTLS), answered: true, wakes: true},
		{name: "pgx over direct TLS", script: fmt.Sprintf(pgx, directTLS), answered: true, wakes: true},
		{name: "a bare connect", script: wire},
		{name: "an SSLRequest alone", script: wire + sslRequest + answer},
		{name: "a GSSENCRequest alone", script: wire + gssRequest + answer},
		{name: "an unfinished StartupMessage", script: wire + `printf '\x00\x00\x00\x21\x00\x03\x00\x00user' >&3`},
		{name: "a GSSENCRequest and an SSLRequest", script: wire + gssRequest + answer + unlessAccepted + sslRequest + answer + "}", counts: byItsLength},
		{name: "an unfinished ClientHello", script: wire + sslRequest + answer + `printf '\x16\x03\x01\x02\x00\x01\x00\x01\xfc' >&3`, counts: byItsLength},
		{name: "a CancelRequest", script: wire + `printf '\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02' >&3`, counts: byItsLength},
	}
}

// checkVisitors are health checks and scanners: HAProxy's checks as sent on the wire, and TLS scanners.
func checkVisitors() []visitor {
	const haproxy = `cat >/tmp/haproxy.cfg <<END_OF_CONFIGURATION
defaults
	mode tcp
	timeout connect 5s
	timeout client 5s
	timeout server 5s
	timeout check 5s
listen postgres
	bind 127.0.0.1:6432
	option %s
	server primary $HOST:5432 check inter 500ms
END_OF_CONFIGURATION
timeout --preserve-status 10 haproxy -db -f /tmp/haproxy.cfg || [ $? = 143 ] # SIGTERM`
	const scan = `exec python3 -c 'import os, socket, ssl
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
scanned = socket.create_connection((os.environ["HOST"], 5432), 10)
%s
context.wrap_socket(scanned).getpeercert(True)'`
	const asked, direct = `scanned.sendall(b"\x00\x00\x00\x08\x04\xd2\x16\x2f"); scanned.recv(1)`, `context.set_alpn_protocols(["postgresql"])`
	return []visitor{
		{name: "HAProxy's tcp-check", script: fmt.Sprintf(haproxy, "tcp-check")},
		{name: "HAProxy's pgsql-check", script: fmt.Sprintf(haproxy, "pgsql-check user app"), wakes: true},
		{name: "a TLS scanner", script: fmt.Sprintf(scan, asked), wakes: true},
		{name: "a scanner of direct TLS", script: fmt.Sprintf(scan, direct), wakes: true},
	}
}
