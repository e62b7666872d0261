package cluster

import "testing"

func TestTheOperatorsManifestUsesOurImage(t *testing.T) {
	t.Parallel()
	const released = "image: registry.example/cloudnative-pg/cloudnative-pg:1.30.0\nimagePullPolicy: Always\n" +
		"env: [{name: OPERATOR_IMAGE_NAME, value: registry.example/cloudnative-pg/cloudnative-pg:1.30.0}]\n"
	const want = "image: localhost/cloudnative-pg:1.30.0\nimagePullPolicy: IfNotPresent\n" +
		"env: [{name: OPERATOR_IMAGE_NAME, value: localhost/cloudnative-pg:1.30.0}]\n"
	if got := withOurImage(released, "1.30.0"); got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestTheVersionThatPostgreSQLSays(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ said, want string }{
		{"postgres (PostgreSQL) 17.11 (Debian 17.11-0+deb13u1)\n", "17.11"},
		{"postgres (PostgreSQL) 15.9\n", "15.9"},
		{"postgres (PostgreSQL) 18beta1 (Debian 18~beta1-1)\n", "18beta1"},
	} {
		if found := version.FindStringSubmatch(row.said); found == nil || found[1] != row.want {
			t.Errorf("%q: %q, want %q", row.said, found, row.want)
		}
	}
	if found := version.FindStringSubmatch("sh: postgres: not found"); found != nil {
		t.Errorf("found %q", found)
	}
}
