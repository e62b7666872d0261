package docs

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// The picture was drawn from its source: make docs writes the source's sum into it.
func TestPicture_isDrawnFromItsSource(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("states.dot")
	if err != nil {
		t.Fatal(err)
	}
	picture, err := os.ReadFile("states.svg")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(source)
	if !strings.Contains(string(picture), hex.EncodeToString(sum[:])) {
		t.Error("states.svg was not drawn from states.dot as it is; make docs draws it, with Debian's graphviz")
	}
}
