package operator

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloudnative-pg/cnpg-i/pkg/operator"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cnpg-i/scale-to-zero/plugin/grpcserver"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle/idletest"
)

// connect serves like the plugin and returns a client.
func connect(t *testing.T) operator.OperatorClient {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "socket")
	server := &grpcserver.Server{Logger: slog.New(slog.DiscardHandler), Register: func(r grpc.ServiceRegistrar) {
		operator.RegisterOperatorServer(r, &Server{Now: func() time.Time { return idletest.Now }})
	}}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- server.ServeSocket(ctx, socket) }()
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	return operator.NewOperatorClient(connection)
}

// definition is a Cluster with those annotations.
func definition(t *testing.T, annotations map[string]string) []byte {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "spec": map[string]any{"instances": 1},
		"metadata": map[string]any{"namespace": "shop", "name": "orders", "annotations": annotations},
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// refused returns the annotation keys in the errors.
func refused(mistakes []*operator.ValidationError) []string {
	var keys []string
	for _, mistake := range mistakes {
		path := mistake.GetPathComponents()
		keys = append(keys, path[len(path)-1])
	}
	return keys
}

func TestTheOperatorServiceKeepsTheRules(t *testing.T) {
	t.Parallel()
	client := connect(t)
	for _, rule := range idletest.Rules {
		for _, value := range rule.Values {
			annotations := map[string]string{rule.Key: value}
			_, problems := idle.ParsePolicy(annotations, idletest.Now)
			created, err := client.ValidateClusterCreate(t.Context(), &operator.OperatorValidateClusterCreateRequest{Definition: definition(t, annotations)})
			if err != nil {
				t.Fatal(err)
			}
			changed, err := client.ValidateClusterChange(t.Context(), &operator.OperatorValidateClusterChangeRequest{
				OldCluster: definition(t, nil), NewCluster: definition(t, annotations),
			})
			if err != nil {
				t.Fatal(err)
			}
			for what, mistakes := range map[string][]*operator.ValidationError{"created": created.GetValidationErrors(), "changed": changed.GetValidationErrors()} {
				if (len(mistakes) != 0) != (rule.Verdict != idletest.Good) {
					t.Errorf("%s with %s=%q: %v", what, rule.Key, value, mistakes)
					continue
				}
				for i, mistake := range mistakes {
					if diff := cmp.Diff([]string{"metadata", "annotations", rule.Key}, mistake.GetPathComponents()); diff != "" {
						t.Errorf("%s with %s=%q: path (-want +got):\n%s", what, rule.Key, value, diff)
					}
					if mistake.GetValue() != value || mistake.GetMessage() != problems[i].Allowed {
						t.Errorf("%s with %s=%q: it says %q of %q, the sidecar %q", what, rule.Key, value, mistake.GetMessage(), mistake.GetValue(), problems[i].Allowed)
					}
				}
			}
		}
	}
}

func TestValidateClusterChange(t *testing.T) {
	t.Parallel()
	client := connect(t)
	const typo = contract.Prefix + "typo"
	stale := map[string]string{contract.AnnotationEnabled: "true", contract.AnnotationWake: "maybe", typo: "x"}
	with := func(changes map[string]string) map[string]string {
		after := maps.Clone(stale)
		maps.Copy(after, changes)
		return after
	}
	for _, row := range []struct {
		rule  string
		after map[string]string
		want  []string
	}{
		{"what was wrong before holds nobody up", with(map[string]string{"example.org/note": "y"}), nil},
		{"a good value beside bad ones is let through", with(map[string]string{contract.AnnotationInactivityMinutes: "5"}), nil},
		{"so is hibernation", with(map[string]string{contract.AnnotationHibernation: "on"}), nil},
		{"a bad value made good is", with(map[string]string{contract.AnnotationWake: "manual"}), nil},
		{"taking all away is", nil, nil},
		{"a bad value made another bad one is refused", with(map[string]string{contract.AnnotationWake: "perhaps"}), []string{contract.AnnotationWake}},
		{"a new bad value is, and only that", with(map[string]string{contract.AnnotationActivity: "none"}), []string{contract.AnnotationActivity}},
		{"all that are new are named", with(map[string]string{contract.AnnotationActivity: "none", typo: "y"}), []string{contract.AnnotationActivity, typo}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			answer, err := client.ValidateClusterChange(t.Context(), &operator.OperatorValidateClusterChangeRequest{
				OldCluster: definition(t, stale), NewCluster: definition(t, row.after),
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, refused(answer.GetValidationErrors())); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMutateClusterChangesNothing(t *testing.T) {
	t.Parallel()
	client := connect(t)
	for _, annotations := range []map[string]string{nil, {contract.AnnotationEnabled: "true"}, {contract.AnnotationWake: "maybe"}} {
		answer, err := client.MutateCluster(t.Context(), &operator.OperatorMutateClusterRequest{Definition: definition(t, annotations)})
		if err != nil || len(answer.GetJsonPatch()) != 0 {
			t.Errorf("of %v it made %s, %v", annotations, answer.GetJsonPatch(), err)
		}
	}
}

func TestWhatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	client := connect(t)
	good, bad := definition(t, nil), []byte(`{"metadata":{"annotations":[]}}`)
	for what, call := range map[string]func() error{
		"created": func() error {
			_, err := client.ValidateClusterCreate(t.Context(), &operator.OperatorValidateClusterCreateRequest{Definition: bad})
			return err
		},
		"before": func() error {
			_, err := client.ValidateClusterChange(t.Context(), &operator.OperatorValidateClusterChangeRequest{OldCluster: bad, NewCluster: good})
			return err
		},
		"after": func() error {
			_, err := client.ValidateClusterChange(t.Context(), &operator.OperatorValidateClusterChangeRequest{OldCluster: good, NewCluster: bad})
			return err
		},
		"mutated": func() error {
			_, err := client.MutateCluster(t.Context(), &operator.OperatorMutateClusterRequest{Definition: bad})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	answer, err := connect(t).GetCapabilities(t.Context(), &operator.OperatorCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, capability := range answer.GetCapabilities() {
		got = append(got, capability.GetRpc().GetType().String())
	}
	if diff := cmp.Diff([]string{"TYPE_VALIDATE_CLUSTER_CREATE", "TYPE_VALIDATE_CLUSTER_CHANGE"}, got); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
}
