package waker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// NewHTTP makes the client that tells sidecars: they are many, and each is told once. It follows nobody elsewhere, since what
// answers in a pod is its owner's, who may not send the plugin through a network that only the plugin reaches.
func NewHTTP() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

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
	if response.StatusCode/100 != 2 {
		err = fmt.Errorf("the answer is %s", response.Status)
	}
	return errors.Join(err, response.Body.Close())
}
