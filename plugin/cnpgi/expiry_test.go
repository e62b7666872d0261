package cnpgi

import (
	"os"
	"testing"
	"time"
)

func TestFiles_sayWhenTheirCertificatesEnd(t *testing.T) {
	t.Parallel()
	files, _ := secrets(t, t.TempDir())
	ends, err := files.Expiry()
	if err != nil {
		t.Fatal(err)
	}
	// A new certificate is valid for 90 days; the CA that follows it in the file is valid for years.
	for _, whose := range []string{"server", "client"} {
		if left := time.Until(ends[whose]); left < 89*24*time.Hour || left > 91*24*time.Hour {
			t.Errorf("the %s's ends in %s", whose, left)
		}
	}
	if err := os.WriteFile(files.ClientCert, []byte("half-written"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ends, err := files.Expiry(); err == nil {
		t.Errorf("what is no certificate ends at %v", ends)
	}
}
