// Package envtest has the interface of controller-runtime's package of this name, with davit behind it: suites that use that
// one exchange the import
//
//	"sigs.k8s.io/controller-runtime/pkg/envtest"
//
// for
//
//	"davit.dev/davittest/envtest"
//
// and need no KUBEBUILDER_ASSETS. By default an environment is what it is there, an API server without controllers, scheduler
// and nodes; Environment.Davit asks for more. Types and functions for definitions and webhooks are those of controller-runtime
// itself. What is about its binaries only (downloading them, etcd, kubectl) is not here, and does not compile.
package envtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"davit.dev/davittest"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	upstream "sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Those of controller-runtime.
type (
	// CRDInstallOptions are the options for installing definitions.
	CRDInstallOptions = upstream.CRDInstallOptions
	// WebhookInstallOptions are the options for installing webhooks.
	WebhookInstallOptions = upstream.WebhookInstallOptions
	// User is a user to add.
	User = upstream.User
	// Arguments are flags.
	Arguments = upstream.Arguments
	// Arg is one flag.
	Arg = upstream.Arg
)

// Those of controller-runtime.
var (
	// EmptyArguments is no flags.
	EmptyArguments = upstream.EmptyArguments
	// InstallCRDs installs definitions and waits until they are served.
	InstallCRDs = upstream.InstallCRDs
	// UninstallCRDs removes definitions.
	UninstallCRDs = upstream.UninstallCRDs
	// CreateCRDs creates definitions.
	CreateCRDs = upstream.CreateCRDs
	// ReadCRDFiles reads the files of the options.
	ReadCRDFiles = upstream.ReadCRDFiles
	// WaitForCRDs waits until definitions are served.
	WaitForCRDs = upstream.WaitForCRDs
	// WaitForWebhooks waits until configurations of webhooks are there.
	WaitForWebhooks = upstream.WaitForWebhooks
)

// The variables of controller-runtime's envtest that are about more than its binaries.
const (
	useExistingVariable  = "USE_EXISTING_CLUSTER"
	startTimeoutVariable = "KUBEBUILDER_CONTROLPLANE_START_TIMEOUT"
	stopTimeoutVariable  = "KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT"
	attachVariable       = "KUBEBUILDER_ATTACH_CONTROL_PLANE_OUTPUT"
)

// ErrNotStarted is said where there is no cluster of this environment's own.
var ErrNotStarted = errors.New("the environment has started no cluster")

// Environment is a cluster of a suite. Its fields are those of controller-runtime's, and Davit.
type Environment struct {
	// ControlPlane has the flags of the API server.
	ControlPlane ControlPlane
	// Scheme says which kinds have conversion webhooks; scheme.Scheme unless given.
	Scheme *runtime.Scheme
	// Config is for clients that may do everything. It is set by Start, or names an existing cluster.
	Config *rest.Config
	// KubeConfig is the kubeconfig of Config, set by Start.
	KubeConfig []byte
	// CRDInstallOptions say which definitions are installed, and how.
	CRDInstallOptions CRDInstallOptions
	// WebhookInstallOptions say which webhooks are installed, and where they are served.
	WebhookInstallOptions WebhookInstallOptions
	// ErrorIfCRDPathMissing makes a path that is not there an error.
	ErrorIfCRDPathMissing bool
	// CRDs are installed besides those of CRDInstallOptions. Start sets all that are.
	CRDs []*apiextensionsv1.CustomResourceDefinition
	// CRDDirectoryPaths are files and directories of definitions, besides those of CRDInstallOptions.
	CRDDirectoryPaths []string
	// BinaryAssetsDirectory is used if it holds a program named davit; its other programs are not needed.
	BinaryAssetsDirectory string
	// UseExistingCluster starts nothing: Config, or the kubeconfig that is found as always, names the cluster.
	UseExistingCluster *bool
	// ControlPlaneStartTimeout is how long the cluster may take to start.
	ControlPlaneStartTimeout time.Duration
	// ControlPlaneStopTimeout is how long it may take to stop.
	ControlPlaneStopTimeout time.Duration
	// AttachControlPlaneOutput has what davit writes on standard error.
	AttachControlPlaneOutput bool

	// Davit asks for more than the API server: without it there are no controllers, no scheduler, and no ServiceAccounts of
	// namespaces that pods would wait for.
	Davit *davittest.Options

	cluster *davittest.Cluster
}

// Start starts a cluster, or finds the existing one, and installs definitions and webhooks. After an error Stop is to be called
// if something shall go on.
func (e *Environment) Start() (*rest.Config, error) {
	if err := e.begin(); err != nil {
		return nil, err
	}
	if err := e.install(); err != nil {
		return e.Config, err
	}
	return e.Config, nil
}

func (e *Environment) begin() error {
	if e.existing() {
		return e.find()
	}
	if e.cluster != nil {
		return errors.New("the environment has been started already")
	}
	options, err := e.options()
	if err != nil {
		return err
	}
	e.cluster, err = davittest.Launch(context.Background(), options)
	if err != nil {
		return fmt.Errorf("unable to start the control plane: %w", err)
	}
	e.Config = e.cluster.Config()
	if len(e.KubeConfig) == 0 {
		e.KubeConfig, err = os.ReadFile(e.cluster.Kubeconfig())
	}
	return err
}

func (e *Environment) existing() bool {
	if e.UseExistingCluster == nil {
		return strings.EqualFold(os.Getenv(useExistingVariable), "true")
	}
	return *e.UseExistingCluster
}

func (e *Environment) find() (err error) {
	if e.Config == nil {
		if e.Config, err = config.GetConfig(); err != nil {
			return fmt.Errorf("unable to get the configuration of the existing cluster: %w", err)
		}
	}
	if len(e.KubeConfig) == 0 {
		e.KubeConfig, err = kubeconfig(e.Config)
	}
	return err
}

// options are those of the cluster.
func (e *Environment) options() (davittest.Options, error) {
	options := davittest.Options{APIServerOnly: true}
	if e.Davit != nil {
		options = *e.Davit
	}
	var defaults map[string][]string
	if options.APIServerOnly {
		defaults = map[string][]string{
			// Nobody makes the accounts that the plugin waits for.
			"disable-admission-plugins": {"ServiceAccount"},
			"service-cluster-ip-range":  {"10.0.0.0/24"},
		}
	}
	server := e.ControlPlane.GetAPIServer()
	flags := server.Configure().AsStrings(defaults)
	options.Flags = append(append([]string(nil), options.Flags...), flags...)
	if options.Binary == "" && e.BinaryAssetsDirectory != "" {
		program := filepath.Join(e.BinaryAssetsDirectory, "davit")
		if about, err := os.Stat(program); err == nil && about.Mode().IsRegular() {
			options.Binary = program
		}
	}
	var outputs []io.Writer
	for _, output := range []io.Writer{options.Output, server.Out, server.Err} {
		if output != nil {
			outputs = append(outputs, output)
		}
	}
	if e.AttachControlPlaneOutput || os.Getenv(attachVariable) == "true" {
		outputs = append(outputs, os.Stderr)
	}
	if len(outputs) > 0 {
		options.Output = io.MultiWriter(outputs...)
	}
	start := limit(&options.StartTimeout, e.ControlPlaneStartTimeout, startTimeoutVariable)
	return options, errors.Join(start, limit(&options.StopTimeout, e.ControlPlaneStopTimeout, stopTimeoutVariable))
}

// limit is what the field says, or else the variable.
func limit(set *time.Duration, field time.Duration, variable string) error {
	if text := os.Getenv(variable); field == 0 && text != "" {
		var err error
		if field, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
	}
	if field > 0 {
		*set = field
	}
	return nil
}

// install has the cluster serve the suite's definitions and call its webhooks.
func (e *Environment) install() error {
	if e.Scheme == nil {
		e.Scheme = scheme.Scheme
	}
	// First: conversion webhooks of definitions are served with these certificates, too.
	if err := e.WebhookInstallOptions.PrepWithoutInstalling(); err != nil {
		return err
	}
	options := &e.CRDInstallOptions
	if options.Scheme == nil {
		options.Scheme = e.Scheme
	}
	options.CRDs = together(options.CRDs, e.CRDs, func(crd *apiextensionsv1.CustomResourceDefinition) string { return crd.Name })
	options.Paths = together(options.Paths, e.CRDDirectoryPaths, func(path string) string { return path })
	options.ErrorIfPathMissing = e.ErrorIfCRDPathMissing
	options.WebhookOptions = e.WebhookInstallOptions
	installed, err := InstallCRDs(e.Config, *options)
	if err != nil {
		return fmt.Errorf("unable to install the definitions: %w", err)
	}
	e.CRDs = installed
	if err := e.WebhookInstallOptions.Install(e.Config); err != nil {
		return fmt.Errorf("unable to install the webhooks: %w", err)
	}
	return nil
}

// together is both, each thing once.
func together[T any](some, others []T, key func(T) string) []T {
	seen := map[string]bool{}
	var all []T
	for _, item := range append(append([]T(nil), some...), others...) {
		if name := key(item); !seen[name] {
			seen[name] = true
			all = append(all, item)
		}
	}
	return all
}

// Stop removes what is to be cleaned up and stops the cluster; an existing one goes on.
func (e *Environment) Stop() error {
	var err error
	if e.CRDInstallOptions.CleanUpAfterUse && e.Config != nil {
		err = UninstallCRDs(e.Config, e.CRDInstallOptions)
	}
	err = errors.Join(err, e.WebhookInstallOptions.Cleanup())
	if e.cluster != nil {
		err = errors.Join(err, e.cluster.Stop())
		e.cluster = nil
	}
	return err
}
