package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// validity is that of everything here: longer than any test cluster lives.
const validity = 365 * 24 * time.Hour

// writePKI writes the keys, certificates and kubeconfigs of a cluster, all anew: with elliptic curves it takes no time.
func (l Layout) writePKI() error {
	ca, err := l.newAuthority("ca", "scale-to-zero-e2e")
	front, failed := l.newAuthority("front-ca", "scale-to-zero-e2e-front-proxy")
	if err := errors.Join(err, failed, l.serviceAccountKey()); err != nil {
		return err
	}
	server := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		IPAddresses: []net.IP{net.ParseIP(nodeAddress), net.ParseIP(apiService), net.ParseIP("127.0.0.1")},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	err = errors.Join(l.pair("apiserver", ca, server), l.pair("front-client", front, clientOf("front-proxy-client")),
		l.pair("apiserver-kubelet", ca, clientOf("apiserver-kubelet-client", "system:masters")))
	for path, client := range map[string]*x509.Certificate{
		l.Kubeconfig():                              clientOf("admin", "system:masters"),
		l.run("pki", "admin.conf"):                  clientOf("admin", "system:masters"),
		l.run("pki", "controller-manager.conf"):     clientOf("system:kube-controller-manager"),
		l.run("pki", "scheduler.conf"):              clientOf("system:kube-scheduler"),
		l.run("pki", "proxy.conf"):                  clientOf("system:kube-proxy"),
		l.run("pki", "kubelet-"+nodeName+".conf"):   clientOf("system:node:"+nodeName, "system:nodes"),
		l.run("pki", "kubelet-"+SecondNode+".conf"): clientOf("system:node:"+SecondNode, "system:nodes"),
	} {
		err = errors.Join(err, ca.kubeconfig(path, client))
	}
	return err
}

func clientOf(name string, groups ...string) *x509.Certificate {
	return &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	encoded     []byte
}

// newAuthority makes an authority, whose certificate is written to the file.
func (l Layout) newAuthority(file, name string) (a authority, err error) {
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return a, fmt.Errorf("generate the key of %s: %w", name, err)
	}
	if a.certificate, err = cert.NewSelfSignedCACert(cert.Config{CommonName: name}, a.key); err != nil {
		return a, fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	if a.encoded, err = cert.EncodeCertificates(a.certificate); err != nil {
		return a, fmt.Errorf("encode the certificate of %s: %w", name, err)
	}
	return a, writeFile(l.run("pki", file+".crt"), string(a.encoded))
}

// issue completes a template and makes a key and a certificate for it, both encoded.
func (a authority) issue(template *x509.Certificate) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate the key of %s: %w", template.Subject.CommonName, err)
	}
	template.NotBefore, template.NotAfter, template.KeyUsage = time.Now().Add(-time.Hour), time.Now().Add(validity), x509.KeyUsageDigitalSignature
	signed, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	if key, err = keyutil.MarshalPrivateKeyToPEM(private); err != nil {
		return nil, nil, fmt.Errorf("encode the key of %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: signed}), key, nil
}

func (l Layout) pair(name string, signer authority, template *x509.Certificate) error {
	certificate, key, err := signer.issue(template)
	if err != nil {
		return err
	}
	return errors.Join(writeFile(l.run("pki", name+".crt"), string(certificate)), writeFile(l.run("pki", name+".key"), string(key)))
}

// serviceAccountKey makes the key that signs service account tokens, and whose public half checks them.
func (l Layout) serviceAccountKey() error {
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return fmt.Errorf("make the key of service accounts: %w", err)
	}
	return writeFile(l.run("pki", "sa.key"), string(key))
}

func (a authority) kubeconfig(path string, template *x509.Certificate) error {
	certificate, key, err := a.issue(template)
	if err != nil {
		return err
	}
	encode := base64.StdEncoding.EncodeToString
	return writeFile(path, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: "https://%s:6443", certificate-authority-data: %s}}]
users: [{name: e2e, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
current-context: e2e
`, nodeAddress, encode(a.encoded), encode(certificate), encode(key)))
}
