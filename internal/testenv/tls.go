package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority of one test, and a server's certificate for this machine
// that it has signed.
type Authority struct {
	Pool                      *x509.CertPool // who trusts it
	CAFile, CertFile, KeyFile string         // PEM; the server's key as PKCS #8
}

// NewAuthority makes one whose certificates are good for an hour.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	fail := func(err error) {
		if err != nil {
			tb.Fatalf("tls: %v", err)
		}
	}
	newKey := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		fail(err)
		return k
	}
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		}
	}
	ca, key := template(1, "a test's authority"), newKey()
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	fail(err)

	server, serverKey := template(2, "localhost"), newKey()
	server.DNSNames, server.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	server.KeyUsage, server.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, ca, serverKey.Public(), key)
	fail(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(serverKey)
	fail(err)

	folder := tb.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(folder, name)
		fail(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	a := &Authority{
		Pool:   x509.NewCertPool(),
		CAFile: write("ca.pem", "CERTIFICATE", caDER), CertFile: write("cert.pem", "CERTIFICATE", serverDER), KeyFile: write("key.pem", "PRIVATE KEY", keyDER),
	}
	signed, err := x509.ParseCertificate(caDER)
	fail(err)
	a.Pool.AddCert(signed)
	return a
}
