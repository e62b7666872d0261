package waker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	// clientAddressTimeout limits the sending of a client address, because a client waits meanwhile.
	clientAddressTimeout = 200 * time.Millisecond
	// resendEvery and resendFor are how often, and for how long, an address is sent again if the sidecar did not accept
	// it.
	resendEvery, resendFor = 500 * time.Millisecond, time.Minute
)

// Sidecars sends client addresses to the sidecars of instances, and asks them whether passwords have been set.
type Sidecars struct {
	client *http.Client
	port   uint16
	logger *slog.Logger
}

// NewSidecars makes the client for all sidecars. It keeps no connections, because sidecars are many and each gets few
// addresses. It follows no redirects, because a pod's owner must not be able to send the plugin to addresses that only
// the plugin can reach.
func NewSidecars(logger *slog.Logger) *Sidecars {
	return &Sidecars{
		client: &http.Client{
			Transport:     &http.Transport{DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		port: contract.SidecarPort, logger: logger,
	}
}

// Send sends the client address of a connection to the sidecar of the instance, waits for its answer, and reports
// whether it accepted the address. If it did not, it takes the gateway for the client: client= rules miss the session,
// and a probe counts.
func (s *Sidecars) Send(ctx context.Context, instance netip.Addr, address contract.ClientAddress) (ok bool) {
	ctx, cancel := context.WithTimeout(ctx, clientAddressTimeout)
	defer cancel()
	body, err := contract.EncodeClientAddress(address)
	if err == nil {
		err = s.do(ctx, http.MethodPost, instance, contract.PathClientAddress, body)
	}
	if err != nil {
		s.logger.Debug("a client address was not sent", "instance", instance, "port", address.Port,
			"peer", address.Peer, "probe", address.Probe, "error", err.Error())
	}
	return err == nil
}

// PasswordSet asks the sidecar of the primary whether the role's password has been set since PostgreSQL's last
// checkpoint: just after a start, that of the previous shutdown. An older sidecar never says so.
func (s *Sidecars) PasswordSet(ctx context.Context, primary netip.Addr, role string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	query := url.Values{contract.QueryParameterRole: {role}}
	return s.do(ctx, http.MethodGet, primary, contract.PathPasswordSet+"?"+query.Encode(), nil) == nil
}

func (s *Sidecars) do(ctx context.Context, method string, instance netip.Addr, path string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+netip.AddrPortFrom(instance, s.port).String()+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		err = fmt.Errorf("the answer is %s", response.Status)
	}
	return errors.Join(err, response.Body.Close())
}

// SendClientAddress tells the sidecar of the target that the connection from local belongs to the peer. PgBouncer has
// none.
func (w *Waker) SendClientAddress(ctx context.Context, target, local, peer netip.AddrPort) {
	pods, err := w.Informers.PodsAt(ctx, "", target.Addr())
	if err == nil && slices.ContainsFunc(pods, func(p corev1.Pod) bool { return endpointslice.IsPooler(&p) }) {
		return
	}
	address := contract.ClientAddress{Port: local.Port(), Peer: peer}
	if !w.Sidecars.Send(ctx, target.Addr(), address) && ctx.Err() == nil { // otherwise there will be no session
		w.unsent.Change(target.Addr(), func(addresses *[]unsent) bool {
			if len(*addresses) == 0 {
				go w.resend(target.Addr())
			}
			*addresses = append(*addresses, unsent{address, time.Now().Add(resendFor)})
			return true
		})
	}
}

// unsent is an address that a sidecar has not accepted, and until when it is sent again.
type unsent struct {
	contract.ClientAddress
	until time.Time
}

// resend repeats the addresses until a sidecar that starts after its PostgreSQL knows of every session that was
// forwarded. One may end before the sidecar's first sample, but the wake was used.
func (w *Waker) resend(instance netip.Addr) {
	_ = wait.PollUntilContextCancel(w.Base, resendEvery, false, func(ctx context.Context) (done bool, _ error) {
		for !done {
			oldest := w.unsent.Get(instance)[0]
			if time.Now().Before(oldest.until) && !w.Sidecars.Send(ctx, instance, oldest.ClientAddress) {
				break
			}
			w.unsent.Change(instance, func(addresses *[]unsent) bool {
				*addresses = (*addresses)[1:]
				done = len(*addresses) == 0
				return !done
			})
		}
		return done, nil
	})
}
