// Renders a chart as Helm does, with the same libraries, which Debian packages: Go's templates, sprig, and the validator
// of values.schema.json. Needs golang-go, golang-github-masterminds-sprig-dev, golang-k8s-sigs-yaml-dev and
// golang-github-xeipuuv-gojsonschema-dev.
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go run render.go CHART < requests.json
//
// Standard input: a JSON array of objects, each the values of one release. Standard output: a JSON array with an object
// for each: `files`, the rendered content by template name, or `error`.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"github.com/xeipuuv/gojsonschema"
	"sigs.k8s.io/yaml"
)

type object = map[string]interface{}

type result struct {
	Files map[string]string `json:"files,omitempty"`
	Error string            `json:"error,omitempty"`
}

func main() {
	chart := os.Args[1]
	var requests []object
	check(json.NewDecoder(os.Stdin).Decode(&requests))
	results := []result{}
	for _, values := range requests {
		files, err := render(chart, values)
		if err != nil {
			results = append(results, result{Error: err.Error()})
		} else {
			results = append(results, result{Files: files})
		}
	}
	check(json.NewEncoder(os.Stdout).Encode(results))
}

func render(chart string, own object) (map[string]string, error) {
	var about, values object
	read(filepath.Join(chart, "Chart.yaml"), &about)
	read(filepath.Join(chart, "values.yaml"), &values)
	values = merge(values, own)
	if err := validate(filepath.Join(chart, "values.schema.json"), values); err != nil {
		return nil, err
	}
	all := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	// Helm removes these: a template must not depend on the environment.
	delete(functions, "env")
	delete(functions, "expandenv")
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text strings.Builder
		err := all.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	all.Funcs(functions)
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	check(err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(err)
		if _, err := all.New(filepath.Base(path)).Parse(string(text)); err != nil {
			return nil, err
		}
	}
	data := object{
		"Values":  values,
		"Chart":   object{"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
		"Release": object{"Name": "jobs", "Namespace": "work", "Service": "Helm"},
	}
	files := map[string]string{}
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "_") {
			continue
		}
		var text strings.Builder
		if err := all.ExecuteTemplate(&text, name, data); err != nil {
			return nil, err
		}
		// Helm removes the placeholder of a missing value in the same way.
		files[name] = strings.ReplaceAll(text.String(), "<no value>", "")
	}
	return files, nil
}

func validate(path string, values object) error {
	schema, err := os.ReadFile(path)
	check(err)
	found, err := gojsonschema.Validate(gojsonschema.NewBytesLoader(schema), gojsonschema.NewGoLoader(values))
	if err != nil {
		return err
	}
	if found.Valid() {
		return nil
	}
	lines := []string{}
	for _, each := range found.Errors() {
		lines = append(lines, fmt.Sprint(each))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// Given values win; maps are merged, and null removes a default.
func merge(defaults, own object) object {
	merged := object{}
	for key, value := range defaults {
		merged[key] = value
	}
	for key, value := range own {
		first, isMap := merged[key].(object)
		second, areBoth := value.(object)
		if value == nil {
			delete(merged, key)
		} else if isMap && areBoth {
			merged[key] = merge(first, second)
		} else {
			merged[key] = value
		}
	}
	return merged
}

func read(path string, into *object) {
	text, err := os.ReadFile(path)
	check(err)
	check(yaml.Unmarshal(text, into))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
