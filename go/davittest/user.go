package davittest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// userLife is how long a user's certificate is valid.
	userLife = 7 * 24 * time.Hour
	// clockSkew is how far the clocks of a container's host and the container may be apart.
	clockSkew = 5 * time.Minute
)

// AddUser is a configuration for clients of a user with this name and these groups, by a client certificate of the cluster's
// authority. What he may do is for roles to say, unless he is in system:masters.
func (c *Cluster) AddUser(name string, groups ...string) (*rest.Config, error) {
	certificate, key, err := c.sign(pkix.Name{CommonName: name, Organization: groups})
	if err != nil {
		return nil, fmt.Errorf("user %s: %w", name, err)
	}
	config := rest.AnonymousClientConfig(c.config)
	config.QPS, config.Burst = c.config.QPS, c.config.Burst
	config.CertData, config.KeyData = certificate, key
	return config, nil
}

// sign has the cluster's authority say who somebody is: certificate and key in PEM.
func (c *Cluster) sign(subject pkix.Name) (certificate, key []byte, err error) {
	authority, signer, err := c.authority()
	if err != nil {
		return nil, nil, err
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	made, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: number,
		Subject:      subject,
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(userLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, authority, private.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made})
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), nil
}

// authority is the cluster's, with its key.
func (c *Cluster) authority() (*x509.Certificate, any, error) {
	certificate, err := c.pem("ca.crt")
	if err != nil {
		return nil, nil, err
	}
	key, err := c.pem("ca.key")
	if err != nil {
		return nil, nil, err
	}
	authority, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, nil, fmt.Errorf("the cluster's authority: %w", err)
	}
	signer, err := x509.ParsePKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("the key of the cluster's authority: %w", err)
	}
	return authority, signer, nil
}

func (c *Cluster) pem(name string) ([]byte, error) {
	path := filepath.Join(c.dataDir(), "pki", name)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the cluster's authority: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New(path + " holds no PEM")
	}
	return block.Bytes, nil
}
