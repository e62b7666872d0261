package startup

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzRead holds that nothing that a client sends makes Read panic or keep more than its limit, that what it takes is what was
// sent, and that a server which reads the bytes as the gateway sends them understands the same.
func FuzzRead(f *testing.F) {
	hello := records(clientHello(serverName("db.example"), protocols("postgresql")), lengthRecordMost)
	for _, parts := range [][3][]byte{
		{startup("user\x00ann\x00database\x00app\x00replication\x00on\x00\x00"), nil, nil},
		{SSLRequest, hello, nil},
		{gssRequest, SSLRequest, records(clientHello(), 5)},
		{hello, nil, nil},
		{packet(codeCancel, "12345678"), nil, nil},
		{[]byte("GET / HTTP/1.1\r\n"), nil, nil},
	} {
		f.Add(parts[0], parts[1], parts[2], 0)
		f.Add(parts[0], parts[1], parts[2], 3)
	}
	const most = 8 << 10
	f.Fuzz(func(t *testing.T, first, second, third []byte, chunk int) {
		client := &script{parts: [][]byte{first, second, third}, chunk: max(0, chunk)}
		opening, err := Read(client, most)
		if err != nil {
			var refused *Error
			if !errors.As(err, &refused) || !slices.Contains(Reasons(), refused.Reason) {
				t.Fatalf("an error without a reason: %v", err)
			}
			return
		}
		if len(opening.Bytes) > most {
			t.Fatalf("%d bytes were taken", len(opening.Bytes))
		}
		if !bytes.Equal(opening.Bytes, client.parts[len(client.answers)][:client.sent]) {
			t.Fatalf("took %x of %x", opening.Bytes, client.parts)
		}
		replayed := [][]byte{opening.Bytes}
		if opening.Kind == TLS {
			replayed = [][]byte{SSLRequest, opening.Bytes}
		}
		again, err := Read(&script{parts: replayed}, most+len(SSLRequest))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(opening, again); diff != "" {
			t.Fatal(diff)
		}
	})
}
