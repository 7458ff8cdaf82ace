package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

const (
	certFile = "tls.crt"
	keyFile  = "tls.key"
)

// writeCertificate writes a self-signed serving certificate and returns it as the bundle to trust.
func writeCertificate(dir string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fleet-operator"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	keyDer, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPem := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDer})
	return bundle, errors.Join(
		os.WriteFile(filepath.Join(dir, certFile), bundle, 0o600),
		os.WriteFile(filepath.Join(dir, keyFile), keyPem, 0o600),
	)
}

type properties = map[string]apiextensionsv1.JSONSchemaProps

func version(name string, storage bool, count, paint string) apiextensionsv1.CustomResourceDefinitionVersion {
	preserve := true
	most := float64(20)
	selector := ".status.selector"
	return apiextensionsv1.CustomResourceDefinitionVersion{
		Name: name, Served: true, Storage: storage,
		Subresources: &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
			Scale: &apiextensionsv1.CustomResourceSubresourceScale{
				SpecReplicasPath: ".spec." + count, StatusReplicasPath: ".status.replicas", LabelSelectorPath: &selector,
			},
		},
		AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
			{Name: "Color", Type: "string", JSONPath: ".spec." + paint},
			{Name: "There", Type: "integer", JSONPath: ".status.replicas"},
		},
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object",
			Properties: properties{
				"spec": {Type: "object", Properties: properties{
					count: {Type: "integer", Format: "int32", Maximum: &most},
					paint: {Type: "string", XValidations: apiextensionsv1.ValidationRules{
						{Rule: "self.lowerAscii() == self", Message: "colors are written small"},
					}},
				}},
				"status": {Type: "object", XPreserveUnknownFields: &preserve},
			},
		}},
	}
}

func definition(base string, ca []byte) *apiextensionsv1.CustomResourceDefinition {
	url := base + "/convert"
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "fleets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "fleets", Singular: "fleet", Kind: "Fleet", ListKind: "FleetList",
				ShortNames: []string{"fl"}, Categories: []string{"all"},
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				version("v1", true, "replicas", "color"), version("v1alpha1", false, "count", "paint"),
			},
			Conversion: &apiextensionsv1.CustomResourceConversion{
				Strategy: apiextensionsv1.WebhookConverter,
				Webhook: &apiextensionsv1.WebhookConversion{
					ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: ca},
					ConversionReviewVersions: []string{"v1"},
				},
			},
		},
	}
}

func installDefinition(ctx context.Context, config *rest.Config, base string, ca []byte) error {
	crds := apiextensions.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions()
	wanted := definition(base, ca)
	if _, err := crds.Create(ctx, wanted, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		there, err := crds.Get(ctx, wanted.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		there.Spec = wanted.Spec
		if _, err := crds.Update(ctx, there, metav1.UpdateOptions{}); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	for range 200 {
		there, err := crds.Get(ctx, wanted.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range there.Status.Conditions {
			if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("%s was not established", wanted.Name)
}

// announcer registers the webhooks once this process leads, so that nothing waits for a webhook not yet served.
type announcer struct {
	config ctrl.Manager
	base   string
	ca     []byte
}

func (a announcer) Start(ctx context.Context) error {
	client := kubernetes.NewForConfigOrDie(a.config.GetConfig())
	path := func(verb string) admissionv1.WebhookClientConfig {
		url := a.base + "/" + verb + "-operator-davit-dev-v1-fleet"
		return admissionv1.WebhookClientConfig{URL: &url, CABundle: a.ca}
	}
	none := admissionv1.SideEffectClassNone
	rules := []admissionv1.RuleWithOperations{{
		Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{"fleets"}},
	}}
	registration := client.AdmissionregistrationV1()
	_, err := registration.MutatingWebhookConfigurations().Create(ctx, &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "fleets"},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "mutate.fleets.davit.dev", ClientConfig: path("mutate"), Rules: rules, SideEffects: &none,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = registration.ValidatingWebhookConfigurations().Create(ctx, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "fleets"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "validate.fleets.davit.dev", ClientConfig: path("validate"), Rules: rules, SideEffects: &none,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	return nil
}
