package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"time"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	encoded     []byte
}

// pki writes the keys, certificates and kubeconfigs of a cluster.
type pki struct {
	directory   string
	ca          authority
	kubeconfigs map[string][]byte
}

// validity is that of everything here: longer than any test cluster lives.
const validity = 365 * 24 * time.Hour

// writePKI makes everything anew: with elliptic curves it takes no time.
func (l Layout) writePKI() error {
	ca, err := newAuthority("scale-to-zero-e2e")
	if err != nil {
		return err
	}
	front, err := newAuthority("scale-to-zero-e2e-front-proxy")
	if err != nil {
		return err
	}
	p := pki{directory: l.run("pki"), ca: ca, kubeconfigs: map[string][]byte{}}
	if err := p.write("ca.crt", ca.encoded); err != nil {
		return err
	}
	if err := p.write("front-ca.crt", front.encoded); err != nil {
		return err
	}
	if err := p.serviceAccountKey(); err != nil {
		return err
	}
	server := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		IPAddresses: []net.IP{net.ParseIP(nodeAddress), net.ParseIP(apiService), net.ParseIP("127.0.0.1")},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if err := p.pair("apiserver", ca, server); err != nil {
		return err
	}
	if err := p.pair("front-client", front, clientOf("front-proxy-client")); err != nil {
		return err
	}
	if err := p.pair("apiserver-kubelet", ca, clientOf("apiserver-kubelet-client", "system:masters")); err != nil {
		return err
	}
	for name, certificate := range map[string]*x509.Certificate{
		"admin":                 clientOf("admin", "system:masters"),
		"controller-manager":    clientOf("system:kube-controller-manager"),
		"scheduler":             clientOf("system:kube-scheduler"),
		"proxy":                 clientOf("system:kube-proxy"),
		"kubelet-" + nodeName:   clientOf("system:node:"+nodeName, "system:nodes"),
		"kubelet-" + SecondNode: clientOf("system:node:"+SecondNode, "system:nodes"),
	} {
		if err := p.kubeconfig(name, certificate); err != nil {
			return err
		}
	}
	return writeFile(l.Kubeconfig(), string(p.kubeconfigs["admin"]))
}

func (p pki) write(name string, content []byte) error {
	return writeFile(filepath.Join(p.directory, name), string(content))
}

func clientOf(name string, groups ...string) *x509.Certificate {
	return &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

func newAuthority(name string) (authority, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, fmt.Errorf("generate the key of %s: %w", name, err)
	}
	signed, err := sign(template, template, key.Public(), key)
	if err != nil {
		return authority{}, err
	}
	certificate, err := x509.ParseCertificate(signed)
	if err != nil {
		return authority{}, fmt.Errorf("read the certificate of %s: %w", name, err)
	}
	return authority{certificate, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})}, nil
}

// sign completes a template and signs it.
func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(validity)
	template.KeyUsage |= x509.KeyUsageDigitalSignature
	signed, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return signed, nil
}

// issue makes a key and a certificate for it, both encoded.
func (a authority) issue(template *x509.Certificate) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate the key of %s: %w", template.Subject.CommonName, err)
	}
	signed, err := sign(template, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the key of %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}), nil
}

func (p pki) pair(name string, signer authority, template *x509.Certificate) error {
	certificate, key, err := signer.issue(template)
	if err != nil {
		return err
	}
	if err := p.write(name+".crt", certificate); err != nil {
		return err
	}
	return p.write(name+".key", key)
}

// serviceAccountKey makes the key that signs service account tokens, and the public half that checks them.
func (p pki) serviceAccountKey() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("generate the key of service accounts: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode the key of service accounts: %w", err)
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := p.write("sa.key", private); err != nil {
		return err
	}
	return p.write("sa.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
}

func (p pki) kubeconfig(name string, template *x509.Certificate) error {
	certificate, key, err := p.ca.issue(template)
	if err != nil {
		return err
	}
	encode := base64.StdEncoding.EncodeToString
	p.kubeconfigs[name] = fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: "https://%s:6443", certificate-authority-data: %s}}]
users: [{name: %s, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: %s}}]
current-context: e2e
`, nodeAddress, encode(p.ca.encoded), name, encode(certificate), encode(key), name)
	return p.write(name+".conf", p.kubeconfigs[name])
}
