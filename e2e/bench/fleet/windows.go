package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// opensIn is how long before they open the windows are set: the longest lead is five minutes more than that of a wake.
const opensIn = 8 * time.Minute

// windows gives many sleeping clusters a window that opens for all of them at once, and prints when they were woken for it.
func (f *fleet) windows(ctx context.Context) error {
	p, err := f.another(ctx, "scale-to-zero-windows", "plugin-windows.log")
	if err != nil {
		return err
	}
	changes, err := f.watchClusters(ctx)
	if err != nil {
		return err
	}
	defer changes.Stop()
	opens := time.Now().UTC().Truncate(time.Minute).Add(opensIn)
	window := fmt.Sprintf("%.3s %s-%s UTC", opens.Weekday(), opens.Format("15:04"), opens.Add(time.Hour).Format("15:04"))
	f.progress.Say("%d clusters have the window %s", f.wakes, window)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"on-connect,window",%q:%q}}}`, scenario.WakeBy, scenario.KeepAwake, window)
	wanted := map[string]bool{}
	for i := range f.wakes {
		wanted[f.cluster(i).Name] = true
		cluster := &metav1.PartialObjectMetadata{ObjectMeta: named(f.cluster(i).Namespace, f.cluster(i).Name)}
		cluster.SetGroupVersionKind(cnpgv1.SchemeGroupVersion.WithKind(cnpgv1.ClusterKind))
		if err := f.admin.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("annotate Cluster %s: %w", f.cluster(i), err)
		}
	}
	woken, err := awaitWoken(ctx, changes, wanted, time.Until(opens)+wakeWithin)
	if err != nil {
		return err
	}
	leads := make([]time.Duration, 0, len(woken)) // before the windows open
	for _, at := range slices.Backward(woken) {
		leads = append(leads, opens.Sub(at))
	}
	most := 0
	for i, lead := range leads {
		within, _ := slices.BinarySearch(leads, lead+10*time.Second)
		most = max(most, within-i)
	}
	row(fmt.Sprintf("%d windows that open at once: woken before that (s)", f.wakes), "the first %.0f, half of them %.0f, the last %.0f",
		leads[len(leads)-1].Seconds(), leads[len(leads)/2].Seconds(), leads[0].Seconds())
	row("... the most in ten seconds", "%d", most)
	return f.kill(ctx, p)
}
