package main

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
)

// A Secret that is deleted keeps the operator from every cluster that lists the plugin.
func TestKeepCertificates_createsADeletedSecretWithinAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		names := cnpgi.CertificateNames{Namespace: "cnpg-system", Service: "scale-to-zero", ServerSecret: "server", ClientSecret: "client"}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go keepCertificates(ctx, client, names, slog.New(slog.DiscardHandler))
		secrets := client.CoreV1().Secrets("cnpg-system")
		for range 2 {
			time.Sleep(time.Minute)
			synctest.Wait()
			for _, name := range []string{"server", "client"} {
				if err := secrets.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func TestRun(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule      string
		arguments []string
		code      int
		says      string
	}{
		{"nothing is not understood", nil, 2, usage},
		{"nor is something else", []string{"serve"}, 2, `"serve"`},
		{"the version is printed", []string{"version"}, 0, version},
		{"arguments that are no flags are not understood", []string{"check-uninstall", "orders"}, 1, `argument "orders" is invalid`},
		{"the command line for people is another program", []string{"kubectl", "status"}, 2, `"kubectl"`},
	} {
		var out bytes.Buffer
		if code := run(row.arguments, &out, &out); code != row.code || !strings.Contains(out.String(), row.says) {
			t.Errorf("%s: code %d, said %q", row.rule, code, out.String())
		}
	}
}
