package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

// longAgo is a deadline that ends every read and write that waits.
var longAgo = time.Unix(1, 0)

// visit is one connection from its beginning to its end.
type visit struct {
	*Gateway
	door   *door
	client *net.TCPConn
	peer   netip.AddrPort
	came   time.Time
	logger *slog.Logger
}

// serve takes the connection through its steps.
func (v *visit) serve() {
	defer func() { _ = v.client.Close() }()
	opening, is := v.open()
	if !is {
		return
	}
	service := v.door.service
	defer v.spliced.give(service.cluster())
	server, err := v.hold(opening)
	if err != nil {
		v.refuse(opening.Kind, err)
		return
	}
	opening = startup.Opening{} // a session may last for days
	v.logger.Debug("a session passes through", "instance", server.RemoteAddr().String())
	v.observer.Spliced(service, 1)
	splice(v.cut, lingerFor, v.client, server)
	v.observer.Spliced(service, -1)
	v.logger.Debug("a session ended")
}

// open reads what the connection says first. If that is a client who wants a session, it has its places among the held and the
// spliced when open returns.
func (v *visit) open() (startup.Opening, bool) {
	service := v.door.service
	defer v.opening.give(service.cluster())
	if refusal := v.director.Refuses(service, v.peer); refusal != "" {
		v.ignore(string(refusal))
		return startup.Opening{}, false
	}
	opening, err := v.read()
	var no *startup.Error
	switch {
	case errors.As(err, &no) && v.cut.Err() != nil:
		v.ignore(ignoredClosed)
		return startup.Opening{}, false
	case errors.As(err, &no):
		v.ignore(string(no.Reason))
		return startup.Opening{}, false
	case err != nil:
		v.refuse(opening.Kind, err)
		return startup.Opening{}, false
	case opening.Kind == startup.Cancel:
		v.cancel(opening.Bytes)
		return startup.Opening{}, false
	}
	if err := v.takePlaces(); err != nil {
		v.refuse(opening.Kind, err)
		return startup.Opening{}, false
	}
	v.observer.Took(service, PhaseOpening, time.Since(v.came))
	return opening, true
}

// read reads the opening within its time.
func (v *visit) read() (startup.Opening, error) {
	if err := v.client.SetDeadline(v.came.Add(v.limits.OpeningFor)); err != nil {
		return startup.Opening{}, errHungUp
	}
	stop := context.AfterFunc(v.cut, func() { _ = v.client.SetDeadline(longAgo) })
	opening, err := startup.Read(v.client, v.limits.OpeningBytes)
	if !stop() && err == nil {
		err = errClosed
	}
	if err != nil {
		return opening, err
	}
	if err := v.client.SetDeadline(time.Time{}); err != nil {
		return opening, errHungUp
	}
	return opening, nil
}

// takePlaces takes the places of a client that will be held.
func (v *visit) takePlaces() error {
	cluster := v.door.service.cluster()
	if !v.held.take(cluster) {
		return errHeld
	}
	if !v.spliced.take(cluster) {
		v.held.give(cluster)
		return errSpliced
	}
	return nil
}

// ignore counts a connection that is no client.
func (v *visit) ignore(reason string) {
	v.observer.Ignored(v.door.service, reason)
	v.logger.Debug("a connection is ignored", "reason", reason)
}
