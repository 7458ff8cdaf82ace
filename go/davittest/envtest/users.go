package envtest

import (
	"io"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// ControlPlane is the API server of a cluster.
type ControlPlane struct {
	// APIServer has its flags.
	APIServer *APIServer
}

// GetAPIServer is the API server, whose flags may be changed before the start.
func (c *ControlPlane) GetAPIServer() *APIServer {
	if c.APIServer == nil {
		c.APIServer = &APIServer{}
	}
	return c.APIServer
}

// APIServer is the API server of a cluster.
type APIServer struct {
	// Out and Err are given what davit writes.
	Out, Err io.Writer

	arguments *Arguments
}

// Configure has the flags of the API server, by kube-apiserver's names. One that davit does not have ends the start with its
// name.
func (s *APIServer) Configure() *Arguments {
	if s.arguments == nil {
		s.arguments = EmptyArguments()
	}
	return s.arguments
}

// AddUser adds a user, with the base's settings (QPS and the like) if there is one. An existing cluster has users of its own.
func (e *Environment) AddUser(user User, base *rest.Config) (*AuthenticatedUser, error) {
	if e.cluster == nil {
		return nil, ErrNotStarted
	}
	made, err := e.cluster.AddUser(user.Name, user.Groups...)
	if err != nil {
		return nil, err
	}
	if base != nil {
		own := made
		made = rest.CopyConfig(base)
		made.Host, made.TLSClientConfig = own.Host, own.TLSClientConfig
	}
	return &AuthenticatedUser{made}, nil
}

// AuthenticatedUser is a user that was added.
type AuthenticatedUser struct{ config *rest.Config }

// Config is for clients of the user. It is the caller's own copy.
func (u *AuthenticatedUser) Config() *rest.Config { return rest.CopyConfig(u.config) }

// KubeConfig is the user's kubeconfig.
func (u *AuthenticatedUser) KubeConfig() ([]byte, error) { return kubeconfig(u.config) }

// kubeconfig is what a configuration says about where and who.
func kubeconfig(config *rest.Config) ([]byte, error) {
	const name = "envtest"
	made := api.NewConfig()
	made.Clusters[name] = &api.Cluster{
		Server: config.Host, CertificateAuthority: config.CAFile, CertificateAuthorityData: config.CAData,
		InsecureSkipTLSVerify: config.Insecure, TLSServerName: config.ServerName,
	}
	made.AuthInfos[name] = &api.AuthInfo{
		ClientCertificate: config.CertFile, ClientCertificateData: config.CertData,
		ClientKey: config.KeyFile, ClientKeyData: config.KeyData,
		Token: config.BearerToken, TokenFile: config.BearerTokenFile,
		Username: config.Username, Password: config.Password, Exec: config.ExecProvider,
	}
	made.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	made.CurrentContext = name
	return clientcmd.Write(*made)
}
