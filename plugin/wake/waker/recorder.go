package waker

import (
	"fmt"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Woken returns the Event about a wake that another replica, or this one before a restart, began but did not report. lastWake is the
// annotation's value, and wake its parsed form.
func Woken(lastWake string, wake contract.LastWake) events.Event {
	from := ""
	if wake.Depth == contract.DepthDoze {
		from = " from a doze"
	}
	return woken(lastWake, fmt.Sprintf(
		"Woken%s by %s through Service %s; how long it took is unknown, because the plugin's pod stopped first",
		from, who(wake.By, wake.User, wake.Database), wake.Service))
}

// woken says who woke a cluster. A wake is identified by the annotation that its patch wrote, so that the replica that turned
// hibernation off and one that survived it write the same Event.
func woken(lastWake, message string) events.Event {
	return events.Event{Reason: "Woken", Message: message, Occasion: lastWake}
}
