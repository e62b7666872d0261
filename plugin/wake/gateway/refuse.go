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

// refusal is the error that a client gets.
type refusal struct {
	reason  RefusedReason
	state   startup.SQLSTATE
	message string
}

// explain turns the error into a message for the client's user. clusters is kubectl's name for the Cluster resource.
func explain(err error, clusters string, service Service) refusal {
	cluster := fmt.Sprintf("cluster %q", service.Cluster)
	now := startup.CannotConnectNow
	switch {
	case errors.Is(err, errStartup):
		return refusal{RefusedStartup, startup.TooManyConnections, "too many pending connections to sleeping clusters; try again"}
	case errors.Is(err, errHeld):
		return refusal{RefusedHeld, startup.TooManyConnections, "too many clients wait for " + cluster + " to wake; try again later"}
	case errors.Is(err, errSpliced):
		return refusal{RefusedSpliced, now, cluster + " is awake now, and too many sessions pass through its gateway; connect again"}
	case errors.Is(err, errReplication):
		return refusal{RefusedReplication, now, cluster + " sleeps, and a replication connection does not wake it"}
	case errors.Is(err, ErrAsleepByHand):
		return refusal{RefusedAsleepByHand, now, fmt.Sprintf(
			"%s is asleep and does not wake on connection; to wake it: kubectl annotate -n %s %s %s "+contract.AnnotationHibernation+"-",
			cluster, service.Namespace, clusters, service.Cluster)}
	case errors.Is(err, ErrMaintenance):
		return refusal{RefusedMaintenance, now, cluster + " sleeps, and is not woken while spec.nodeMaintenanceWindow is in progress with " +
			"reusePVC false: the operator would delete the volumes of an instance that cannot be scheduled; end the maintenance, or set reusePVC to true"}
	case errors.Is(err, ErrReconnectDirectly):
		return refusal{RefusedReconnect, now, cluster + " is awake, but this gateway cannot reach its instances; connect again, which leads to them directly"}
	case errors.Is(err, ErrReconnect):
		return refusal{RefusedReconnect, now, cluster + " is awake; connect again, because its pg_hba or network rules depend on the client's own address"}
	case errors.Is(err, ErrGone):
		return refusal{RefusedFailed, now, cluster + " or this Service of it is being deleted, or is gone"}
	case errors.Is(err, ErrTimeout):
		return refusal{RefusedTimeout, now, cluster + " did not wake in time; try again"}
	case errors.Is(err, errUnreachable):
		return refusal{RefusedUnreachable, now, cluster + " is awake but does not accept connections yet; try again"}
	case errors.Is(err, errNoTLS):
		return refusal{RefusedNoTLS, now, cluster + " serves no TLS"}
	case errors.Is(err, errClosed):
		return refusal{RefusedClosed, now, "the gateway that wakes " + cluster + " stops; connect again"}
	case errors.Is(err, errHungUp):
		return refusal{RefusedHungUp, now, ""}
	case errors.Is(err, errAhead):
		return refusal{RefusedAhead, now, "too much was sent before " + cluster + " woke; wait for the server's answer"}
	default:
		return refusal{RefusedFailed, now, cluster + " could not be woken; try again"}
	}
}

// refuse tells the client why it gets no session. Inside TLS it cannot, because only the server could.
func (c *clientConn) refuse(kind startup.Kind, why error) {
	told := explain(why, c.clusters, c.listener.service)
	c.observer.Refused(c.listener.service, told.reason)
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
