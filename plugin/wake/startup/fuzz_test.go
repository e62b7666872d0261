package startup

import (
	"bytes"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// FuzzRead holds that nothing that a client sends makes Read panic or keep more than its limit, that no client is shorter than the
// sidecar believes, that what Read takes is what was sent, and that a server which reads the bytes as the gateway sends them
// understands the same.
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
	f.Fuzz(func(t *testing.T, first, second, third []byte, chunk int) {
		hold(t, &script{parts: [][]byte{first, second, third}, chunk: max(0, chunk)})
	})
}

var packets = flag.Int("packets", 50_000, "how many damaged packets TestDamagedPackets reads")

// TestDamagedPackets holds the same of what real clients sent, with some bytes changed, lost, doubled or taken from another. It is
// much faster than the fuzzer, which finds its own way.
func TestDamagedPackets(t *testing.T) {
	t.Parallel()
	var real [][][]byte
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		client, _, _ := parseTranscript(t, content)
		real = append(real, client.parts)
	}
	accepted, random := 0, rand.New(rand.NewPCG(1, 2))
	for range *packets {
		parts := slices.Clone(real[random.IntN(len(real))])
		for range random.IntN(4) {
			other := real[random.IntN(len(real))]
			at := random.IntN(len(parts))
			parts[at] = damage(random, parts[at], other[random.IntN(len(other))])
		}
		if hold(t, &script{parts: parts, chunk: random.IntN(3) * random.IntN(200)}) {
			accepted++
		}
	}
	if accepted == 0 || accepted == *packets {
		t.Errorf("%d of %d were taken", accepted, *packets)
	}
}

// damage changes one part.
func damage(random *rand.Rand, part, other []byte) []byte {
	if len(part) == 0 {
		return other
	}
	at, to := random.IntN(len(part)), random.IntN(len(part)+1)
	switch random.IntN(5) {
	case 0:
		return part[:at]
	case 1:
		return slices.Concat(part[:max(at, to)], part[min(at, to):])
	case 2:
		return slices.Concat(part[:min(at, to)], part[max(at, to):])
	case 3:
		return slices.Concat(part[:at], other[min(at, len(other)):])
	default:
		changed := bytes.Clone(part)
		changed[at] ^= byte(1 + random.IntN(255))
		return changed
	}
}

// hold reads the client's startup packet and checks it. It tells whether the startup packet was taken.
func hold(t *testing.T, client *script) (taken bool) {
	t.Helper()
	const most = 8 << 10
	packet, err := Read(client, most)
	if err != nil {
		var refused *Error
		if !errors.As(err, &refused) || !slices.Contains(Reasons(), refused.Reason) {
			t.Fatalf("an error without a reason: %v", err)
		}
		return false
	}
	if len(packet.Bytes) > most || packet.Kind != Cancel && len(packet.Bytes) < contract.MinStartupPacketBytes {
		t.Fatalf("%d bytes were taken", len(packet.Bytes))
	}
	if !bytes.Equal(packet.Bytes, client.parts[len(client.answers)][:client.sent]) {
		t.Fatalf("took %x of %x", packet.Bytes, client.parts)
	}
	replayed := [][]byte{packet.Bytes}
	if packet.Kind == TLS {
		replayed = [][]byte{SSLRequest, packet.Bytes}
	}
	again, err := Read(&script{parts: replayed}, most+len(SSLRequest))
	if err != nil || !reflect.DeepEqual(packet, again) {
		t.Fatalf("took %+v, and then %+v and %v", packet, again, err)
	}
	return true
}
