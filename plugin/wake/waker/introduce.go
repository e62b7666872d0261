package waker

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"time"
)

const (
	// sidecarPort is where the sidecar is told.
	sidecarPort = 9189
	// introductionTimeout bounds it: the client waits meanwhile.
	introductionTimeout = 200 * time.Millisecond
	// introductionVersion is of the form of what is told.
	introductionVersion = 1
)

// introduction tells the sidecar who is behind a connection of the gateway's.
type introduction struct {
	Version int    `json:"version"`
	Port    uint16 `json:"port"`
	Peer    string `json:"peer"`
}

// Introduce tells the target's sidecar that the connection from local is really peer's. That it could not be told makes
// client= rules miss the session, which then counts as activity, and nothing worse.
func (w *Waker) Introduce(ctx context.Context, target, local, peer netip.AddrPort) {
	w.introduce(ctx, netip.AddrPortFrom(target.Addr(), sidecarPort), local, peer)
}

func (w *Waker) introduce(ctx context.Context, sidecar, local, peer netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, introductionTimeout)
	defer cancel()
	unmapped := netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
	body, err := json.Marshal(introduction{introductionVersion, local.Port(), unmapped.String()})
	if err == nil {
		err = w.post(ctx, "http://"+sidecar.String()+"/introduce", body)
	}
	if err != nil {
		w.Logger.Debug("the sidecar was not told whose a session is", "target", sidecar, "peer", unmapped, "error", err.Error())
	}
}

func (w *Waker) post(ctx context.Context, url string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := w.HTTP.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
