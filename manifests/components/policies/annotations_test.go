package policies

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/internal/apiservertest"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// onlyTheSidecar are annotations of which only the sidecar can tell everything.
var onlyTheSidecar = []string{contract.AnnotationIgnore, contract.AnnotationKeepAwake, contract.AnnotationKeepAwakeUntil, contract.AnnotationSleepRequested, contract.AnnotationWakeRequested}

// parsed is what the sidecar says of a value, nil if it understands it.
func parsed(key, value string) *idle.Problem {
	_, problems := idle.ParsePolicy(map[string]string{key: value}, parsedAt)
	if len(problems) == 0 {
		return nil
	}
	return &problems[0]
}

func TestTheSidecarKeepsTheRules(t *testing.T) {
	t.Parallel()
	for _, rule := range rules {
		for _, value := range rule.Values {
			if problem := parsed(rule.Key, value); (problem != nil) != (rule.Verdict != good) {
				t.Errorf("%s=%q: %v", rule.Key, value, problem)
			}
		}
	}
}

// written asks the API server to make a Cluster with that annotation.
func (s *server) written(key, value string) error {
	c := cluster("shop", "asked", "")
	c.Annotations[key] = value
	return s.admin.Create(s.t.Context(), c, client.DryRunAll)
}

// annotate patches annotations of a Cluster; nothing is kept of a dry run.
func (s *server) annotate(name string, annotations map[string]any, options ...client.PatchOption) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	s.must(err)
	return s.admin.Patch(s.t.Context(), cluster("shop", name, ""), client.RawPatch(types.MergePatchType, body), options...)
}

func TestAnnotationsPolicy(t *testing.T) {
	t.Parallel()
	s := begin(t, resources...)
	stale := cluster("shop", "stale", "")
	stale.Annotations[contract.AnnotationWake], stale.Annotations[contract.Prefix+"typo"] = "maybe", "x"
	s.create(stale)
	s.install("annotations")
	s.comes("the policy holds", func() bool { return byPolicy(s.written(contract.AnnotationEnabled, "yes")) })

	t.Run("the rules", func(t *testing.T) {
		for _, rule := range rules {
			for _, value := range rule.Values {
				err := s.written(rule.Key, value)
				if rule.Verdict != bad {
					if err != nil {
						t.Errorf("%s=%q is refused: %v", rule.Key, value, err)
					}
					continue
				}
				if !byPolicy(err) {
					t.Errorf("%s=%q: not refused by a policy: %v", rule.Key, value, err)
					continue
				}
				if said, problem := err.Error(), parsed(rule.Key, value); !same(said, problem) {
					t.Errorf("%s=%q: the API server says %s\nthe sidecar %s", rule.Key, value, said, problem)
				}
			}
		}
	})
	t.Run("what the sidecar understands is not refused", func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		refused := 0
		for range 600 {
			rule := rules[random.IntN(len(rules))]
			value := mutated(random, rule.Values[random.IntN(len(rule.Values))])
			problem, err := parsed(rule.Key, value), s.written(rule.Key, value)
			switch {
			case err != nil && problem == nil:
				t.Errorf("%s=%q is refused: %v", rule.Key, value, err)
			case err == nil && problem != nil && !slices.Contains(onlyTheSidecar, rule.Key):
				t.Errorf("%s=%q is let through, and the sidecar says %s", rule.Key, value, problem)
			case err != nil:
				refused++
			}
		}
		if refused < 100 {
			t.Errorf("only %d values were refused: the mutations try nothing", refused)
		}
	})
	t.Run("a cluster dozes before it hibernates", func(t *testing.T) {
		dozing := cluster("shop", "dozing", "")
		dozing.Annotations[contract.AnnotationDozeMinutes], dozing.Annotations[contract.AnnotationInactivityMinutes] = "45", "60"
		s.create(dozing)
		for _, row := range []struct {
			rule        string
			annotations map[string]any
			refused     bool
		}{
			{"a doze that is longer than the default", map[string]any{contract.AnnotationDozeMinutes: "59.9"}, false},
			{"a doze that is too long", map[string]any{contract.AnnotationDozeMinutes: "60"}, true},
			{"a hibernation that is not too early", map[string]any{contract.AnnotationInactivityMinutes: "45.1"}, false},
			{"a hibernation that is too early", map[string]any{contract.AnnotationInactivityMinutes: "45"}, true},
			{"both at once", map[string]any{contract.AnnotationInactivityMinutes: "10", contract.AnnotationDozeMinutes: "5"}, false},
			{"no doze, and an early hibernation", map[string]any{contract.AnnotationInactivityMinutes: "10", contract.AnnotationDozeMinutes: nil}, false},
			{"another annotation", map[string]any{contract.AnnotationWake: "manual"}, false},
		} {
			if err := s.annotate("dozing", row.annotations, client.DryRunAll); byPolicy(err) != row.refused || err != nil && !row.refused {
				t.Errorf("%s: refused %t: %v", row.rule, err != nil, err)
			}
		}
	})
	t.Run("a Namespace has defaults for its Clusters", func(t *testing.T) {
		shop := &corev1.Namespace{}
		shop.Name = "shop"
		set := func(key, value string) error {
			body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
			s.must(err)
			return s.admin.Patch(t.Context(), shop, client.RawPatch(types.MergePatchType, body))
		}
		if err := set(contract.AnnotationInactivityMinutes, "soon"); !byPolicy(err) {
			t.Errorf("an invalid default is not refused by a policy: %v", err)
		}
		if err := set(contract.AnnotationKeepAwakeUntil, "2026-03-01T00:00:00Z"); !byPolicy(err) || !strings.Contains(err.Error(), "cannot be a default") {
			t.Errorf("what is of one Cluster is not refused by a policy: %v", err)
		}
		if err := s.written(contract.AnnotationDozeMinutes, "45"); !byPolicy(err) {
			t.Errorf("a doze that is too long for the default of 30 minutes: %v", err)
		}
		s.must(set(contract.AnnotationInactivityMinutes, "60"))
		var refusal error
		seen := func(context.Context) (bool, error) { // the API server's policies read Namespaces from a cache
			refusal = s.written(contract.AnnotationDozeMinutes, "45") //nolint:contextcheck // it has the context of the test
			return refusal == nil, nil
		}
		if wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, seen) != nil {
			t.Errorf("a doze that is short enough for the Namespace's default: %v", refusal)
		}
	})
	t.Run("types", func(t *testing.T) {
		s.install("instances")
		s.typed(t)
	})
	t.Run("only what changes is looked at", func(t *testing.T) {
		for _, row := range []struct {
			rule        string
			annotations map[string]any
			refused     bool
		}{
			{"another annotation of a Cluster with bad values", map[string]any{"example.org/note": "y"}, false},
			{"a good value beside bad ones", map[string]any{contract.AnnotationInactivityMinutes: "5"}, false},
			{"the bad value once more", map[string]any{contract.AnnotationWake: "maybe"}, false},
			{"the bad values away", map[string]any{contract.AnnotationWake: nil, contract.Prefix + "typo": nil}, false},
			{"the bad value made good", map[string]any{contract.AnnotationWake: "manual"}, false},
			{"the bad value made another bad one", map[string]any{contract.AnnotationWake: "perhaps"}, true},
			{"the unknown one changed", map[string]any{contract.Prefix + "typo": "y"}, true},
			{"a new bad value", map[string]any{contract.AnnotationActivity: "none"}, true},
			{"a good and a bad one", map[string]any{contract.AnnotationEnabled: "false", contract.AnnotationActivity: "none"}, true},
			{"all away", nil, false},
		} {
			if err := s.annotate("stale", row.annotations, client.DryRunAll); byPolicy(err) != row.refused || err != nil && !row.refused {
				t.Errorf("%s: refused %t: %v", row.rule, err != nil, err)
			}
		}
		scale := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"instances":3}}`))
		if err := s.admin.Patch(t.Context(), cluster("shop", "stale", ""), scale); err != nil {
			t.Errorf("a Cluster with bad values cannot be scaled: %v", err)
		}
		if err := s.admin.Status().Patch(t.Context(), cluster("shop", "stale", ""), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"x"}}`))); err != nil {
			t.Errorf("its status cannot be written: %v", err)
		}
	})
}

// asCEL undoes escapes that Go's %q makes and CEL's strings.quote does not.
var asCEL = strings.NewReplacer(`\u00a0`, "\u00a0", `\u2003`, "\u2003")

// The controller manager, which looks at every policy with the schema in hand, finds fields that there are not.
func (s *server) typed(t *testing.T) {
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: s.config.Host, CertificateAuthorityData: s.config.CAData}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: s.config.CertData, ClientKeyData: s.config.KeyData}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	s.must(clientcmd.WriteToFile(*kubeconfig, path))
	manager := exec.CommandContext(t.Context(), apiservertest.Program(t), "kube-controller-manager", "--kubeconfig", path, "--leader-elect=false",
		"--controllers=validatingadmissionpolicy-status-controller", "--secure-port=0")
	var said bytes.Buffer
	manager.Stdout, manager.Stderr = &said, &said
	s.must(manager.Start())
	defer func() {
		_ = manager.Process.Kill()
		_ = manager.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	}()
	var policies admissionv1.ValidatingAdmissionPolicyList
	s.comes("the types are checked", func() bool {
		s.must(s.admin.List(t.Context(), &policies))
		return !slices.ContainsFunc(policies.Items, func(p admissionv1.ValidatingAdmissionPolicy) bool { return p.Status.TypeChecking == nil })
	})
	if len(policies.Items) != 5 {
		t.Errorf("%d policies", len(policies.Items))
	}
	for i := range policies.Items {
		for _, warning := range policies.Items[i].Status.TypeChecking.ExpressionWarnings {
			t.Errorf("%s: %s: %s", policies.Items[i].Name, warning.FieldRef, warning.Warning)
		}
	}
}

// same tells whether the API server's words end with the sidecar's. Of a list the policy cannot tell which item it is.
func same(said string, problem *idle.Problem) bool {
	if problem.Key != contract.AnnotationIgnore && problem.Key != contract.AnnotationKeepAwake {
		return strings.HasSuffix(said, "denied request: "+problem.String())
	}
	_, allowed, found := strings.Cut(problem.Allowed, "; it must be ")
	want := fmt.Sprintf("denied request: annotation %s has the value %q: it must be %s", problem.Key, problem.Value, allowed)
	return found && strings.HasSuffix(said, asCEL.Replace(want))
}

// mutated changes a value in one or two places.
func mutated(random *rand.Rand, value string) string {
	const letters = "0123456789 ;,:=-+./*TZaeu\t\u00a0"
	runes := []rune(value)
	for range 1 + random.IntN(2) {
		letter := []rune(letters)[random.IntN(len([]rune(letters)))]
		at := random.IntN(len(runes) + 1)
		switch {
		case at == len(runes) || random.IntN(3) == 0:
			runes = append(runes[:at], append([]rune{letter}, runes[at:]...)...)
		case random.IntN(2) == 0:
			runes[at] = letter
		default:
			runes = append(runes[:at], runes[at+1:]...)
		}
	}
	return string(runes)
}
