package gateway

import (
	"errors"
	"fmt"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// refuseFor limits the write of a refusal, which fits in the socket's buffer.
const refuseFor = time.Second

// Why a client gets no session, besides the backend's errors.
var (
	errStartup     = errors.New("too many connections have not said what they are")
	errHeld        = errors.New("too many clients are held")
	errSpliced     = errors.New("too many sessions pass through")
	errReplication = errors.New("replication does not wake a cluster")
	errUnreachable = errors.New("the instance does not accept the session")
	errHolds       = fmt.Errorf("%w: every client of the cluster is held", errUnreachable)
	errNoTLS       = errors.New("the instance serves no TLS")
	errClosed      = errors.New("the gateway stops")
	errHungUp      = errors.New("the client has hung up")
	errAhead       = errors.New("the client sent too much ahead of its turn")
)

type refusal struct {
	reason  RefusedReason
	state   startup.SQLSTATE
	message string
}

// explain turns the error into a message for the client's user. clusters is kubectl's name for the Cluster resource.
func explain(err error, clusters string, service Service) refusal {
	cluster, busy, now := fmt.Sprintf("cluster %q", service.Cluster), startup.TooManyConnections, startup.CannotConnectNow
	for _, known := range []struct {
		err error
		refusal
	}{
		{errStartup, refusal{RefusedStartup, busy, "too many pending connections to sleeping clusters; try again"}},
		{errHeld, refusal{RefusedHeld, busy, "too many clients wait for " + cluster + " to wake; try again later"}},
		{errSpliced, refusal{RefusedSpliced, now, cluster +
			" is awake now, and too many sessions pass through its gateway; connect again"}},
		{errReplication, refusal{RefusedReplication, now, cluster +
			" sleeps, and a replication connection does not wake it"}},
		{ErrAsleepByHand, refusal{RefusedAsleepByHand, now, fmt.Sprintf(
			"%s is asleep and does not wake on connection; to wake it, once its pods are gone: kubectl annotate -n %s %s %s "+contract.AnnotationHibernation+"-",
			cluster, service.Namespace, clusters, service.Cluster)}},
		{ErrMaintenance, refusal{RefusedMaintenance, now, cluster +
			" sleeps, and is not woken while spec.nodeMaintenanceWindow is in progress with reusePVC false: the operator " +
			"would delete the volumes of an instance that cannot be scheduled; end the maintenance, or set reusePVC to true"}},
		{ErrReconnectDirectly, refusal{RefusedReconnect, now, cluster +
			" is awake, but this gateway cannot reach its instances; connect again to reach them directly"}},
		{ErrReconnect, refusal{RefusedReconnect, now, cluster +
			" is awake; connect again, because its pg_hba or network rules depend on the client's own address"}},
		{ErrGone, refusal{RefusedFailed, now, cluster + " or this Service of it is being deleted, or is gone"}},
		{ErrTimeout, refusal{RefusedTimeout, now, cluster + " did not wake in time; try again"}},
		{errUnreachable, refusal{RefusedUnreachable, now, cluster +
			" does not accept connections; try again"}},
		{errNoTLS, refusal{RefusedNoTLS, now, cluster + " serves no TLS"}},
		{errClosed, refusal{RefusedClosed, now, "the gateway that wakes " + cluster + " is stopping; connect again"}},
		{errHungUp, refusal{RefusedHungUp, now, ""}},
		{errAhead, refusal{RefusedAhead, now, "too much was sent before " + cluster + " woke; wait for the server's answer"}},
	} {
		if errors.Is(err, known.err) {
			return known.refusal
		}
	}
	return refusal{RefusedFailed, now, cluster + " could not be woken; try again"}
}

// refuse tells the client why it gets no session. Inside TLS it cannot, because only the server could.
func (c *clientConn) refuse(kind startup.Kind, why error) {
	told := explain(why, c.clusters, c.service)
	c.observer.Refused(c.service, told.reason)
	c.logger.Debug("a client is refused", "reason", string(told.reason), "error", why.Error())
	if kind != startup.Plain || told.reason == RefusedHungUp {
		return
	}
	packet, err := startup.Refuse(told.state, told.message)
	if err != nil {
		c.logger.Error("cannot encode a refusal", "error", err.Error())
		return
	}
	_ = c.client.SetWriteDeadline(time.Now().Add(refuseFor))
	_, _ = c.client.Write(packet) // the client may be gone
}
