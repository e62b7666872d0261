package startup

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 64 << 10

func TestRead(t *testing.T) {
	t.Parallel()
	ann := startup("user\x00ann\x00\x00")
	hello := records(clientHello(serverName("db.example")), lengthRecordMost)
	direct := records(clientHello(serverName("db.example"), protocols("postgresql")), lengthRecordMost)
	for _, row := range []struct {
		rule    string
		parts   [][]byte
		want    Packet
		answers string
	}{
		{
			"a startup packet is taken, and the database is the user's name",
			[][]byte{ann}, Packet{Kind: Plain, Bytes: ann, User: "ann", Database: "ann"}, "",
		},
		{
			"every parameter that is known is told, and others are passed",
			[][]byte{startup("user\x00ann\x00database\x00app\x00application_name\x00psql\x00options\x00-c x=y\x00\x00")},
			Packet{
				Kind: Plain, Bytes: startup("user\x00ann\x00database\x00app\x00application_name\x00psql\x00options\x00-c x=y\x00\x00"),
				User: "ann", Database: "app",
			}, "",
		},
		{
			"protocol 3.2 is one like 3.0",
			[][]byte{packet(3<<16|2, "user\x00ann\x00\x00")},
			Packet{Kind: Plain, Bytes: packet(3<<16|2, "user\x00ann\x00\x00"), User: "ann", Database: "ann"}, "",
		},
		{
			"a minor version that does not exist yet is the server's to negotiate",
			[][]byte{packet(3<<16|9999, "user\x00ann\x00\x00")},
			Packet{Kind: Plain, Bytes: packet(3<<16|9999, "user\x00ann\x00\x00"), User: "ann", Database: "ann"}, "",
		},
		{
			"what a plaintext client sends without waiting is kept for the server",
			[][]byte{append(bytes.Clone(ann), "Q..."...)},
			Packet{Kind: Plain, Bytes: append(bytes.Clone(ann), "Q..."...), User: "ann", Database: "ann"}, "",
		},
		{
			"the last of two users holds, as in the server",
			[][]byte{startup("user\x00eve\x00user\x00ann\x00\x00")},
			Packet{Kind: Plain, Bytes: startup("user\x00eve\x00user\x00ann\x00\x00"), User: "ann", Database: "ann"}, "",
		},
		{
			"SSLRequest is answered S at once, and the ClientHello is what a server gets",
			[][]byte{SSLRequest, hello}, Packet{Kind: TLS, Bytes: hello, ServerName: "db.example"}, "S",
		},
		{
			"a ClientHello may come in many records",
			[][]byte{SSLRequest, records(clientHello(serverName("db.example")), 3)},
			Packet{Kind: TLS, Bytes: records(clientHello(serverName("db.example")), 3), ServerName: "db.example"}, "S",
		},
		{
			"a ClientHello needs no extensions",
			[][]byte{SSLRequest, records(clientHello(), 99)}, Packet{Kind: TLS, Bytes: records(clientHello(), 99)}, "S",
		},
		{
			"GSSENCRequest is answered N, and SSLRequest may follow",
			[][]byte{gssRequest, SSLRequest, hello}, Packet{Kind: TLS, Bytes: hello, ServerName: "db.example"}, "NS",
		},
		{
			"GSSENCRequest is answered N, and a startup packet may follow",
			[][]byte{gssRequest, ann}, Packet{Kind: Plain, Bytes: ann, User: "ann", Database: "ann"}, "N",
		},
		{
			"TLS may begin without SSLRequest if it asks for postgresql",
			[][]byte{direct}, Packet{Kind: DirectTLS, Bytes: direct, ServerName: "db.example"}, "",
		},
		{
			"a CancelRequest is taken",
			[][]byte{packet(codeCancel, "\x00\x00\x00\x01key.")}, Packet{Kind: Cancel, Bytes: packet(codeCancel, "\x00\x00\x00\x01key.")}, "",
		},
		{
			"a CancelRequest of protocol 3.2 has a longer key",
			[][]byte{packet(codeCancel, strings.Repeat("k", 260))}, Packet{Kind: Cancel, Bytes: packet(codeCancel, strings.Repeat("k", 260))}, "",
		},
		{
			"replication=database is logical",
			[][]byte{startup("user\x00ann\x00replication\x00database\x00\x00")},
			Packet{Kind: Plain, Bytes: startup("user\x00ann\x00replication\x00database\x00\x00"), User: "ann", Database: "ann", Replication: LogicalReplication}, "",
		},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			for _, chunk := range []int{0, 1, 7} {
				if chunk > 0 && strings.Contains(row.rule, "without waiting") {
					continue // what has not arrived yet is not the startup packet's
				}
				client := &script{parts: row.parts, chunk: chunk}
				got, err := Read(client, limit)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(row.want, got); diff != "" {
					t.Errorf("%d bytes at once (-want +got):\n%s", chunk, diff)
				}
				if string(client.answers) != row.answers {
					t.Errorf("answered %q, want %q", client.answers, row.answers)
				}
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	hello := clientHello(serverName("a"))
	inRecord := func(message []byte) []byte { return records(message, lengthRecordMost) }
	edited := func(at int, value byte) []byte {
		changed := bytes.Clone(hello)
		changed[at] = value
		return inRecord(changed)
	}
	for _, row := range []struct {
		rule  string
		parts [][]byte
		end   error
		limit int
		want  Reason
	}{
		{"a connection that ends without a byte is bare", [][]byte{nil}, nil, limit, ReasonBare},
		{"a connection that is reset without a byte is bare", [][]byte{nil}, syscall.ECONNRESET, limit, ReasonBare},
		{"a deadline that passes without a byte is a timeout", [][]byte{nil}, os.ErrDeadlineExceeded, limit, ReasonTimeout},
		{"a deadline that passes within the packet is a timeout", [][]byte{{0, 0}}, os.ErrDeadlineExceeded, limit, ReasonTimeout},
		{"a length alone is incomplete", [][]byte{{0, 0, 0, 9}}, nil, limit, ReasonIncomplete},
		{"a packet shorter than its length is incomplete", [][]byte{startup("user\x00ann\x00\x00")[:14]}, nil, limit, ReasonIncomplete},
		{"SSLRequest alone is incomplete", [][]byte{SSLRequest, nil}, nil, limit, ReasonIncomplete},
		{"GSSENCRequest alone is incomplete", [][]byte{gssRequest, nil}, nil, limit, ReasonIncomplete},
		{"half a ClientHello is incomplete", [][]byte{SSLRequest, inRecord(hello)[:40]}, nil, limit, ReasonIncomplete},
		{"a record less than its ClientHello is incomplete", [][]byte{SSLRequest, inRecord(hello[:3])}, nil, limit, ReasonIncomplete},
		{"a ClientHello before the answer S is pipelined", [][]byte{append(bytes.Clone(SSLRequest), inRecord(hello)...)}, nil, limit, ReasonPipelined},
		{"a startup packet before the answer N is pipelined", [][]byte{append(bytes.Clone(gssRequest), startup("user\x00a\x00\x00")...)}, nil, limit, ReasonPipelined},
		{"an HTTP request is garbage", [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n")}, nil, limit, ReasonGarbage},
		{"a greeting of SSH is garbage", [][]byte{[]byte("SSH-2.0-OpenSSH_9\r\n")}, nil, limit, ReasonGarbage},
		{"protocol 2 is garbage", [][]byte{packet(2<<16, "user\x00a\x00\x00")}, nil, limit, ReasonGarbage},
		{"an unknown request is garbage", [][]byte{packet(1234<<16|5681, "x")}, nil, limit, ReasonGarbage},
		{"a startup packet of more than 10,000 bytes is garbage", [][]byte{startup("user\x00" + strings.Repeat("a", 10000) + "\x00\x00")}, nil, limit, ReasonGarbage},
		{"a startup packet without a user is garbage", [][]byte{startup("database\x00a\x00\x00")}, nil, limit, ReasonGarbage},
		{"an empty startup packet is garbage", [][]byte{startup("\x00")}, nil, limit, ReasonGarbage},
		{"a startup packet without an end is garbage", [][]byte{startup("user\x00a\x00")}, nil, limit, ReasonGarbage},
		{"a name without a value is garbage", [][]byte{startup("user\x00a")}, nil, limit, ReasonGarbage},
		{"bytes behind the last parameter are garbage", [][]byte{startup("user\x00a\x00\x00x")}, nil, limit, ReasonGarbage},
		{"a replication that is neither true nor false is garbage", [][]byte{startup("user\x00a\x00replication\x00o\x00\x00")}, nil, limit, ReasonGarbage},
		{"an SSLRequest that is too long is garbage", [][]byte{packet(codeSSL, "x")}, nil, limit, ReasonGarbage},
		{"a second GSSENCRequest is garbage", [][]byte{gssRequest, gssRequest}, nil, limit, ReasonGarbage},
		{"a second SSLRequest is garbage", [][]byte{SSLRequest, SSLRequest}, nil, limit, ReasonGarbage},
		{"a startup packet after S is garbage", [][]byte{SSLRequest, startup("user\x00a\x00\x00")}, nil, limit, ReasonGarbage},
		{"TLS without SSLRequest behind GSSENCRequest is garbage", [][]byte{gssRequest, inRecord(clientHello(protocols("postgresql")))}, nil, limit, ReasonGarbage},
		{"a CancelRequest that is too short is garbage", [][]byte{packet(codeCancel, "1234567")}, nil, limit, ReasonGarbage},
		{"a CancelRequest that is too long is garbage", [][]byte{packet(codeCancel, strings.Repeat("k", 261))}, nil, limit, ReasonGarbage},
		{"bytes behind a CancelRequest are garbage", [][]byte{append(packet(codeCancel, "12345678"), 'x')}, nil, limit, ReasonGarbage},
		{"direct TLS without a protocol is garbage", [][]byte{inRecord(clientHello(serverName("a")))}, nil, limit, ReasonGarbage},
		{"direct TLS for another protocol is garbage", [][]byte{inRecord(clientHello(protocols("h2")))}, nil, limit, ReasonGarbage},
		{"a TLS alert in place of a ClientHello is garbage", [][]byte{SSLRequest, {21, 3, 1, 0, 2, 2, 80}}, nil, limit, ReasonGarbage},
		{"an empty record is garbage", [][]byte{SSLRequest, {handshake, 3, 1, 0, 0}}, nil, limit, ReasonGarbage},
		{"a record of more than 2^14 bytes is garbage", [][]byte{SSLRequest, {handshake, 3, 1, 0x40, 1}}, nil, limit, ReasonGarbage},
		{"a record of SSL 2 is garbage", [][]byte{SSLRequest, {handshake, 2, 0, 0, 1}}, nil, limit, ReasonGarbage},
		{"another handshake message is garbage", [][]byte{SSLRequest, edited(0, 2)}, nil, limit, ReasonGarbage},
		{"bytes behind the ClientHello in its record are garbage", [][]byte{SSLRequest, inRecord(append(bytes.Clone(hello), 0))}, nil, limit, ReasonGarbage},
		{"a ClientHello of SSL 3 is garbage", [][]byte{SSLRequest, edited(5, 0)}, nil, limit, ReasonGarbage},
		{"a session identifier of more than 32 bytes is garbage", [][]byte{SSLRequest, edited(38, 33)}, nil, limit, ReasonGarbage},
		{"an odd list of ciphers is garbage", [][]byte{SSLRequest, edited(40, 3)}, nil, limit, ReasonGarbage},
		{"extensions that are cut short are garbage", [][]byte{SSLRequest, inRecord(clientHello("\x00\x00\x00"))}, nil, limit, ReasonGarbage},
		{"an extension that comes twice is garbage", [][]byte{SSLRequest, inRecord(clientHello(serverName("a"), serverName("b")))}, nil, limit, ReasonGarbage},
		{"a server name without a name is garbage", [][]byte{SSLRequest, inRecord(clientHello(serverName("")))}, nil, limit, ReasonGarbage},
		{"a list without a protocol is garbage", [][]byte{SSLRequest, inRecord(clientHello(extension(extensionProtocols, vector(2))))}, nil, limit, ReasonGarbage},
		{"a protocol without a name is garbage", [][]byte{SSLRequest, inRecord(clientHello(protocols("")))}, nil, limit, ReasonGarbage},
		{"a packet that exceeds the limit is too large", [][]byte{startup("user\x00" + strings.Repeat("a", 99) + "\x00\x00")}, nil, 50, ReasonTooLarge},
		{"a ClientHello that names more than the limit is too large", [][]byte{SSLRequest, inRecord([]byte("\x01\xff\xff\xff1234"))}, nil, limit, ReasonTooLarge},
		{"what was answered counts towards the limit", [][]byte{SSLRequest, inRecord(hello)}, nil, len(inRecord(hello)) + 7, ReasonTooLarge},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			got, err := Read(&script{parts: row.parts, end: row.end}, row.limit)
			var refused *Error
			if !errors.As(err, &refused) {
				t.Fatalf("got %+v and %v", got, err)
			}
			if refused.Reason != row.want {
				t.Errorf("got %v, want %s", err, row.want)
			}
		})
	}
}

func TestReplicationIsReadAsTheServerReadsIt(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]Replication{
		"database": LogicalReplication, "true": PhysicalReplication, "T": PhysicalReplication, "on": PhysicalReplication,
		"yes": PhysicalReplication, "1": PhysicalReplication, "false": NoReplication, "of": NoReplication, "0": NoReplication, "n": NoReplication,
	} {
		got, err := Read(&script{parts: [][]byte{startup("user\x00a\x00replication\x00" + value + "\x00\x00")}}, limit)
		if err != nil || got.Replication != want {
			t.Errorf("replication=%s: got %v and %v, want %v", value, got.Replication, err, want)
		}
	}
}

func TestRefuseIsReadByAClient(t *testing.T) {
	t.Parallel()
	packet, err := Refuse(CannotConnectNow, "the cluster is waking up")
	if err != nil {
		t.Fatal(err)
	}
	message, err := pgproto3.NewFrontend(bytes.NewReader(packet), nil).Receive()
	if err != nil {
		t.Fatal(err)
	}
	want := &pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "57P03", Message: "the cluster is waking up"}
	if diff := cmp.Diff(pgproto3.BackendMessage(want), message); diff != "" {
		t.Error(diff)
	}
}

func TestReasonsAreListed(t *testing.T) {
	t.Parallel()
	seen := map[Reason]bool{}
	for _, reason := range Reasons() {
		if seen[reason] || reason == "" {
			t.Errorf("%q is listed twice or empty", reason)
		}
		seen[reason] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d reasons are listed", len(seen))
	}
}

func TestAClientThatSaysLittleCostsLittle(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		sent []byte
		most int
	}{
		{"a length that promises much allocates nothing for it", []byte{0, 0, 0x27, 0x10, 0, 3, 0, 0}, firstBuffer},
		{"a record that promises much allocates nothing for it", []byte{handshake, 3, 1, 0x40, 0, 1, 0, 0xf0, 0}, firstBuffer},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			in := &input{from: &script{parts: [][]byte{row.sent}}, limit: limit}
			if _, err := in.peek(9999); err == nil {
				t.Fatal("more came than was sent")
			}
			if cap(in.buffer) > row.most {
				t.Errorf("the buffer has %d bytes", cap(in.buffer))
			}
		})
	}
}
