// An aggregated API server on the official library, for tests: one kind, kept in memory.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	openapicommon "k8s.io/kube-openapi/pkg/common"

	metaopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	serving := options.NewSecureServingOptions().WithLoopback()
	authentication := options.NewDelegatingAuthenticationOptions()
	authorization := options.NewDelegatingAuthorizationOptions()
	core := options.NewCoreAPIOptions()
	flags := pflag.NewFlagSet("aggregated", pflag.ExitOnError)
	serving.AddFlags(flags)
	authentication.AddFlags(flags)
	authorization.AddFlags(flags)
	core.AddFlags(flags)
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}

	config := genericapiserver.NewRecommendedConfig(codecs)
	config.EffectiveVersion = utilcompatibility.DefaultBuildEffectiveVersion()
	definitions := func(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
		all := metaopenapi.GetOpenAPIDefinitions(ref)
		for name, definition := range openAPIDefinitions(ref) {
			all[name] = definition
		}
		return all
	}
	namer := openapi.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	config.OpenAPIConfig.Info.Title = "Gauges"
	config.OpenAPIV3Config.Info.Title = "Gauges"

	if err := serving.MaybeDefaultWithSelfSignedCerts("localhost", nil, nil); err != nil {
		return err
	}
	if err := serving.ApplyTo(&config.SecureServing, &config.LoopbackClientConfig); err != nil {
		return err
	}
	if err := authentication.ApplyTo(&config.Authentication, config.SecureServing, config.OpenAPIConfig); err != nil {
		return err
	}
	if err := authorization.ApplyTo(&config.Authorization); err != nil {
		return err
	}
	if err := core.ApplyTo(config); err != nil {
		return err
	}
	if config.SharedInformerFactory == nil {
		client, err := kubernetes.NewForConfig(config.ClientConfig)
		if err != nil {
			return err
		}
		config.SharedInformerFactory = informers.NewSharedInformerFactory(client, 0)
	}

	server, err := config.Complete().New("gauges", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return err
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(groupName, scheme, metav1.ParameterCodec, codecs)
	group.VersionedResourcesStorageMap[groupVersion.Version] = map[string]rest.Storage{"gauges": newGauges()}
	if err := server.InstallAPIGroup(&group); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return server.PrepareRun().RunWithContext(ctx)
}
