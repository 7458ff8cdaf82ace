// Command envtest is a test suite as kubebuilder's users have it: an unchanged envtest.Environment starts what
// KUBEBUILDER_ASSETS holds, with a definition and a webhook of the suite's own, users of its own, and a token of a service
// account. It then starts further environments and tells how long they take, and what they leave behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

func main() {
	rounds := flag.Int("rounds", 3, "how many further environments are started")
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := errors.Join(suite(ctx), again(*rounds)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func suite(ctx context.Context) (err error) {
	environment := &envtest.Environment{
		CRDs: []*apiextensionsv1.CustomResourceDefinition{definition()},
		WebhookInstallOptions: envtest.WebhookInstallOptions{
			ValidatingWebhooks: []*admissionv1.ValidatingWebhookConfiguration{validation()},
		},
	}
	config, err := environment.Start()
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	defer func() { err = errors.Join(err, environment.Stop()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := serveWebhook(ctx, config, environment.WebhookInstallOptions); err != nil {
		return err
	}
	// In this order: what is new is looked at before anything is made.
	for _, step := range []struct {
		name  string
		check func(context.Context, *envtest.Environment, *rest.Config) error
	}{
		{"objects", objects}, {"webhook", refused}, {"users", users}, {"tokens", tokens}, {"services", services},
	} {
		if err := step.check(ctx, environment, config); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Println("ok", step.name)
	}
	return nil
}

// objects: what the suite defines is served, and no controller makes anything of it.
func objects(ctx context.Context, _ *envtest.Environment, config *rest.Config) error {
	c, err := client.NewWithWatch(config, client.Options{})
	if err != nil {
		return err
	}
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("suite.davit.dev/v1")
	list.SetKind("GaugeList")
	watch, err := c.Watch(ctx, list)
	if err != nil {
		return err
	}
	defer watch.Stop()
	gauge := gauge("one", nil)
	if err := c.Create(ctx, gauge); err != nil {
		return err
	}
	if event := <-watch.ResultChan(); event.Object.(*unstructured.Unstructured).GetUID() != gauge.GetUID() {
		return fmt.Errorf("the watch shows %v", event)
	}
	accounts := &corev1.ServiceAccountList{}
	if err := c.List(ctx, accounts); err != nil {
		return err
	}
	if len(accounts.Items) > 0 {
		return fmt.Errorf("a controller made %s", accounts.Items[0].Name)
	}
	return nil
}

func refused(ctx context.Context, _ *envtest.Environment, config *rest.Config) error {
	c, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	err = c.Create(ctx, gauge("two", map[string]string{"wrong": "true"}))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "it is wrong") {
		return fmt.Errorf("the suite's webhook does not refuse: %v", err)
	}
	return nil
}

func users(ctx context.Context, environment *envtest.Environment, _ *rest.Config) error {
	user, err := environment.AddUser(envtest.User{Name: "jane", Groups: []string{"readers"}}, nil)
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(user.Config())
	if err != nil {
		return err
	}
	self, err := clients.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if self.Status.UserInfo.Username != "jane" || !slices.Contains(self.Status.UserInfo.Groups, "readers") {
		return fmt.Errorf("is %v", self.Status.UserInfo)
	}
	_, err = clients.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		return fmt.Errorf("reads secrets: %v", err)
	}
	return nil
}

func tokens(ctx context.Context, _ *envtest.Environment, config *rest.Config) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	if _, err := clients.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return err
	}
	request, err := clients.CoreV1().ServiceAccounts("default").CreateToken(ctx, "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	with := rest.AnonymousClientConfig(config)
	with.BearerToken = request.Status.Token
	robot, err := kubernetes.NewForConfig(with)
	if err != nil {
		return err
	}
	self, err := robot.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if name := self.Status.UserInfo.Username; name != "system:serviceaccount:default:robot" {
		return fmt.Errorf("is %s", name)
	}
	return nil
}

// services: addresses are of the range that envtest names.
func services(ctx context.Context, _ *envtest.Environment, config *rest.Config) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	service, err = clients.CoreV1().Services("default").Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	address, err := netip.ParseAddr(service.Spec.ClusterIP)
	if err != nil || !netip.MustParsePrefix("10.0.0.0/24").Contains(address) {
		return fmt.Errorf("%s is not in the range", service.Spec.ClusterIP)
	}
	return nil
}

func serveWebhook(ctx context.Context, config *rest.Config, options envtest.WebhookInstallOptions) error {
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: options.LocalServingHost, Port: options.LocalServingPort, CertDir: options.LocalServingCertDir,
		}),
	})
	if err != nil {
		return err
	}
	manager.GetWebhookServer().Register("/judge", &webhook.Admission{Handler: admission.HandlerFunc(
		func(_ context.Context, request admission.Request) admission.Response {
			if strings.Contains(string(request.Object.Raw), `"wrong":"true"`) {
				return admission.Denied("it is wrong")
			}
			return admission.Allowed("")
		})})
	go func() {
		if err := manager.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "manager:", err)
		}
	}()
	for started := manager.GetWebhookServer().StartedChecker(); started(&http.Request{}) != nil; {
		select {
		case <-ctx.Done():
			return errors.New("the webhook does not start")
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// again starts environments one after another; each is new, and each ends.
func again(rounds int) error {
	var starts, stops []time.Duration
	for range rounds {
		environment := &envtest.Environment{}
		began := time.Now()
		config, err := environment.Start()
		if err != nil {
			return fmt.Errorf("starting again: %w", err)
		}
		starts = append(starts, time.Since(began))
		clients, err := kubernetes.NewForConfig(config)
		if err == nil {
			_, err = clients.CoreV1().ServiceAccounts("default").Get(context.Background(), "robot", metav1.GetOptions{})
		}
		began = time.Now()
		if stopped := environment.Stop(); stopped != nil {
			return stopped
		}
		stops = append(stops, time.Since(began))
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("an environment before has left something: %v", err)
		}
	}
	if rounds > 0 {
		slices.Sort(starts)
		slices.Sort(stops)
		fmt.Printf("started in %v, stopped in %v (median of %d)\n", starts[rounds/2], stops[rounds/2], rounds)
	}
	return nil
}

func gauge(name string, labels map[string]string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"level": int64(3)}}}
	object.SetAPIVersion("suite.davit.dev/v1")
	object.SetKind("Gauge")
	object.SetNamespace("default")
	object.SetName(name)
	object.SetLabels(labels)
	return object
}

func definition() *apiextensionsv1.CustomResourceDefinition {
	spec := map[string]apiextensionsv1.JSONSchemaProps{
		"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"level": {Type: "integer"}}},
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gauges.suite.davit.dev"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "suite.davit.dev",
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gauges", Singular: "gauge", Kind: "Gauge"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: spec},
				},
			}},
		},
	}
}

func validation() *admissionv1.ValidatingWebhookConfiguration {
	path, none := "/judge", admissionv1.SideEffectClassNone
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "judge"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name:                    "judge.suite.davit.dev",
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             &none,
			// envtest makes a URL of it
			ClientConfig: admissionv1.WebhookClientConfig{
				Service: &admissionv1.ServiceReference{Name: "judge", Namespace: "default", Path: &path},
			},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule: admissionv1.Rule{
					APIGroups: []string{"suite.davit.dev"}, APIVersions: []string{"v1"}, Resources: []string{"gauges"},
				},
			}},
		}},
	}
}
