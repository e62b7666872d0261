package startup

import (
	"testing"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// The sidecar does not parse startup packets: it takes whoever sent as many bytes as the shortest one for a client.
func TestRead_takesNoClientShorterThanTheShortestStartupPacket(t *testing.T) {
	t.Parallel()
	wakes := func(parts ...[]byte) bool {
		packet, err := Read(&script{parts: parts}, limit)
		return err == nil && packet.Kind != Cancel
	}
	t.Run("a StartupMessage of that length wakes", func(t *testing.T) {
		t.Parallel()
		shortest := startup("user\x00u\x00\x00")
		if len(shortest) != contract.MinStartupPacketBytes || !wakes(shortest) {
			t.Errorf("%x has %d bytes, want %d that wake", shortest, len(shortest), contract.MinStartupPacketBytes)
		}
	})
	t.Run("no shorter StartupMessage does, whatever its parameters", func(t *testing.T) {
		t.Parallel()
		tried := 0
		for length := 1; lengthRequest+length < contract.MinStartupPacketBytes; length++ {
			for body := range bodies("\x00user", length) {
				tried++
				if wakes(startup(string(body))) {
					t.Errorf("%q wakes", body)
				}
			}
		}
		if tried < 5*5*5*5*5*5*5 {
			t.Errorf("%d were tried", tried)
		}
	})
	for rule, parts := range map[string][][]byte{
		"a StartupMessage":                  {startup("user\x00u\x00\x00")},
		"a ClientHello after an SSLRequest": {SSLRequest, records(clientHello(), lengthRecordMost)},
		"a ClientHello without SSLRequest":  {records(clientHello(protocols("postgresql")), lengthRecordMost)},
	} {
		t.Run("the shortest of its kind wakes and no beginning of it does: "+rule, func(t *testing.T) {
			t.Parallel()
			last := len(parts) - 1
			if !wakes(parts...) || len(parts[last]) < contract.MinStartupPacketBytes {
				t.Errorf("%d bytes, of which at least %d must wake", len(parts[last]), contract.MinStartupPacketBytes)
			}
			for n := range parts[last] {
				if wakes(append(parts[:last:last], parts[last][:n])...) {
					t.Errorf("%d of %d bytes wake", n, len(parts[last]))
				}
			}
		})
	}
}

// bodies are all texts of the length that the letters make.
func bodies(letters string, length int) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		count := 1
		for range length {
			count *= len(letters)
		}
		body := make([]byte, length)
		for number := range count {
			for at := range body {
				body[at], number = letters[number%len(letters)], number/len(letters)
			}
			if !yield(body) {
				return
			}
		}
	}
}
