package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const groupName = "instruments.davit.test"

var (
	groupVersion = schema.GroupVersion{Group: groupName, Version: "v1alpha1"}
	scheme       = runtime.NewScheme()
	codecs       = serializer.NewCodecFactory(scheme)
)

// Gauge is a measuring instrument: the one kind of this server.
type Gauge struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec GaugeSpec `json:"spec,omitempty"`
}

// GaugeSpec says what a gauge measures.
type GaugeSpec struct {
	Unit    string `json:"unit,omitempty"`
	Reading int64  `json:"reading,omitempty"`
}

// GaugeList is a list of gauges.
type GaugeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Gauge `json:"items"`
}

// The names of the models, by which the library knows which kind a model is of.
func (Gauge) OpenAPIModelName() string     { return "test.davit.instruments.v1alpha1.Gauge" }
func (GaugeSpec) OpenAPIModelName() string { return "test.davit.instruments.v1alpha1.GaugeSpec" }
func (GaugeList) OpenAPIModelName() string { return "test.davit.instruments.v1alpha1.GaugeList" }

func (g *Gauge) DeepCopy() *Gauge {
	out := *g
	g.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

func (g *Gauge) DeepCopyObject() runtime.Object { return g.DeepCopy() }

func (l *GaugeList) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Gauge, len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopy()
	}
	return &out
}

func init() {
	// One Go type serves as the internal and the external version: there is nothing to convert.
	internal := schema.GroupVersion{Group: groupName, Version: runtime.APIVersionInternal}
	scheme.AddKnownTypes(internal, &Gauge{}, &GaugeList{})
	scheme.AddKnownTypes(groupVersion, &Gauge{}, &GaugeList{})
	metav1.AddToGroupVersion(scheme, groupVersion)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	unversioned := schema.GroupVersion{Version: "v1"}
	scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{},
		&metav1.APIGroup{}, &metav1.APIResourceList{})
	if err := scheme.SetVersionPriority(groupVersion); err != nil {
		panic(err)
	}
}

func openAPIDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	object := func(description string, properties map[string]spec.Schema, required ...string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{
			Description: description, Type: []string{"object"}, Properties: properties, Required: required,
		}}
	}
	described := func(description string, property *spec.Schema) spec.Schema {
		property.Description = description
		return *property
	}
	refer := func(name, description string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{
			Description: description, Default: map[string]interface{}{}, Ref: ref(name),
		}}
	}
	apiVersion := described("The version of this object's schema.", spec.StringProperty())
	kind := described("The kind of this object.", spec.StringProperty())
	return map[string]common.OpenAPIDefinition{
		Gauge{}.OpenAPIModelName(): {
			Schema: object("Gauge is a measuring instrument.", map[string]spec.Schema{
				"apiVersion": apiVersion, "kind": kind,
				"metadata": refer(metav1.ObjectMeta{}.OpenAPIModelName(), "Standard metadata."),
				"spec":     refer(GaugeSpec{}.OpenAPIModelName(), "What the gauge measures."),
			}),
			Dependencies: []string{metav1.ObjectMeta{}.OpenAPIModelName(), GaugeSpec{}.OpenAPIModelName()},
		},
		GaugeSpec{}.OpenAPIModelName(): {
			Schema: object("GaugeSpec says what a gauge measures.", map[string]spec.Schema{
				"unit":    described("The unit of the reading, such as bar.", spec.StringProperty()),
				"reading": described("The last reading.", spec.Int64Property()),
			}),
		},
		GaugeList{}.OpenAPIModelName(): {
			Schema: object("GaugeList is a list of gauges.", map[string]spec.Schema{
				"apiVersion": apiVersion, "kind": kind,
				"metadata": refer(metav1.ListMeta{}.OpenAPIModelName(), "Standard metadata."),
				"items": {SchemaProps: spec.SchemaProps{
					Description: "The gauges.", Type: []string{"array"},
					Items: &spec.SchemaOrArray{Schema: &spec.Schema{SchemaProps: spec.SchemaProps{Ref: ref(Gauge{}.OpenAPIModelName())}}},
				}},
			}, "items"),
			Dependencies: []string{metav1.ListMeta{}.OpenAPIModelName(), Gauge{}.OpenAPIModelName()},
		},
	}
}
